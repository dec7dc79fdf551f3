"""Small programs that keep tensors for longer than they need, as people write them, and what is said of each.

Each is predicted with holders recorded, and recorded on the CPU in a real process. The line with `# here` is the one to
change.
"""

import gc
import linecache
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from types import CodeType, ModuleType

import pytest

import memviz
from memviz.analysis.allocations import allocation
from memviz.analysis.annotations import event_of_mark
from memviz.analysis.comparing.changes import changes
from memviz.analysis.findings.finding import FindingKind
from memviz.analysis.findings.ranking import findings
from memviz.analysis.holders import held_by
from memviz.analysis.leaks import growth
from memviz.analysis.lifetimes import lifetimes
from memviz.trace.model import HolderKind, Trace
from memviz.ui.compare.waterfall import waterfall, waterfall_html
from memviz.ui.explore.inspector import allocation_html
from memviz.ui.explore.live_set import growth_html
from tests.runner.fake_gpu import FakeGpu
from tests.runner.torch_storages import watching_torch

BEGIN = """
import contextvars, functools, gc, threading
import torch
from torch import nn

model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256)).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
SIZE = 512 * 256 * 4

def batch():
    return torch.randn(512, 256, device="cuda")

def train(loss):
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@dataclass(frozen=True)
class Program:
    source: str
    kind: HolderKind
    chain: str
    """Begin of the chain that is expected; @ is a number."""
    finding: FindingKind | None = None
    least: int = 512 * 256 * 4
    """Bytes that it keeps at least."""


LIST, GRAPH = FindingKind.KEPT_BY_LIST, FindingKind.KEPT_BY_GRAPH
PROGRAMS = {
    "a list of losses": Program(
        """
def main():
    losses = []
    for _ in range(5):
        hidden = model(batch()).exp()
        loss = hidden.square().mean()
        train(loss)
        losses.append((hidden * hidden).sum())  # here
main()
""",
        HolderKind.AUTOGRAD_GRAPH,
        "losses[2] → grad_fn → … → ",
        GRAPH,
    ),
    "a sum of losses": Program(
        """
total = 0
for _ in range(5):
    output = model(batch())
    train(output.square().mean())
    total = total + output.exp().sum()  # here
""",
        HolderKind.AUTOGRAD_GRAPH,
        "total → grad_fn → … → ExpBackward0 saved result (global)",
        GRAPH,
    ),
    "outputs of an evaluation": Program(
        """
class Trainer:
    def __init__(self):
        self.outputs = []

    def step(self):
        x = batch()
        train(model(x).square().mean())
        self.outputs.append(model(x).detach())  # here

trainer = Trainer()
for _ in range(5):
    trainer.step()
""",
        HolderKind.CONTAINER,
        "trainer.outputs[3] (global)",
        LIST,
    ),
    "a dictionary by step": Program(
        """
history = {}
for step in range(5):
    x = batch()
    train(model(x).square().mean())
    history[f"step {step}"] = x  # here
""",
        HolderKind.CONTAINER,
        "history['step 2'] (global)",
        LIST,
    ),
    "a hook that stores": Program(
        """
def watch():
    seen = []
    def hook(module, inputs, output):
        seen.append(output.detach() * 2)  # here
    model[0].register_forward_hook(hook)

watch()
for _ in range(5):
    train(model(batch()).square().mean())
""",
        HolderKind.HOOK,
        "model.0._forward_hooks[@] → seen in the closure of hook[2]",
        LIST,
    ),
    "an exception in a variable": Program(
        """
def step(number):
    x = batch()
    loss = model(x).square().mean()
    if number == 1:
        raise ValueError("too large")
    train(loss)

for number in range(4):
    try:
        step(number)
    except ValueError as error:
        last_error = error  # here
""",
        HolderKind.EXCEPTION,
        "last_error → traceback → x in step (global)",
        FindingKind.KEPT_BY_EXCEPTION,
    ),
    "exceptions in a list": Program(
        """
failures = []
def step(number):
    x = batch()
    train(model(x).square().mean())
    raise ValueError("too large")

for number in range(4):
    try:
        step(number)
    except ValueError as error:
        failures.append(error)  # here
""",
        HolderKind.EXCEPTION,
        "failures[1] → traceback → x in step (global)",
        FindingKind.KEPT_BY_EXCEPTION,
    ),
    "a closure": Program(
        """
def later(x):
    return lambda: x.sum()

callbacks = []
for _ in range(5):
    x = batch()
    train(model(x).square().mean())
    callbacks.append(later(x))  # here
""",
        HolderKind.CLOSURE,
        "callbacks[2] → x in the closure of <lambda>",
        LIST,
    ),
    "a cycle without collection": Program(
        """
gc.disable()
class State:  # here
    def __init__(self, x):
        self.x = x
        self.itself = self

for _ in range(5):
    state = State(batch())
    train(model(state.x).square().mean())
""",
        HolderKind.UNCOLLECTED_CYCLE,
        "State ← unreachable",
        FindingKind.WAITS_FOR_COLLECTION,
    ),
    "an exception in a cycle": Program(
        """
gc.disable()
def step():
    x = batch()
    loss = model(x).exp().mean()
    try:
        raise ValueError("too large")
    except ValueError as error:
        kept = error
    train(loss)

for _ in range(4):
    step()
""",
        HolderKind.UNCOLLECTED_CYCLE,
        "frame ← ",
        FindingKind.WAITS_FOR_COLLECTION,
    ),
    "states of an optimizer": Program(
        """
optimizer = torch.optim.AdamW(model.parameters())  # here
for _ in range(3):
    train(model(batch()).square().mean())
""",
        HolderKind.CONTAINER,
        "optimizer.state[parameter]['exp_avg'] (global)",
        least=256 * 256 * 4,
    ),
    "the last output": Program(
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = model
        self.last_output = None

    def forward(self, x):
        x = self.body(x)
        self.last_output = x  # here
        return x

net = Net()
for _ in range(4):
    train(net(batch()).square().mean())
""",
        HolderKind.ATTRIBUTE,
        "net.last_output (global)",
    ),
    "a cache of a function": Program(
        """
@functools.lru_cache(maxsize=None)
def positions(step):  # here
    return torch.full((512, 256), float(step), device="cuda")

for step in range(5):
    train(model(batch() + positions(step)).square().mean())
""",
        HolderKind.CONTAINER,
        "positions → cached results[@] (global)",
        LIST,
    ),
    "a default argument": Program(
        """
def collect(x, seen=[]):
    seen.append(x)  # here
    return x

for _ in range(5):
    train(model(collect(batch())).square().mean())
""",
        HolderKind.CLOSURE,
        "collect → seen, default argument of collect[2] (global)",
        LIST,
    ),
    "a generator that was left": Program(
        """
def batches():
    while True:
        current = batch()  # here
        yield current * 2

source = batches()
for _ in range(3):
    train(model(next(source)).square().mean())
""",
        HolderKind.VARIABLE,
        "source → current in batches (global)",
    ),
    "a variable of a thread": Program(
        """
local = threading.local()
for _ in range(3):
    local.x = batch()  # here
    train(model(local.x).square().mean())
""",
        HolderKind.ATTRIBUTE,
        "local.x",
    ),
    "a context variable": Program(
        """
current = contextvars.ContextVar("current")
for _ in range(3):
    current.set(batch())
    train(model(current.get()).square().mean())
""",
        HolderKind.VARIABLE,
        "current (context variable)",
    ),
    "the batch after the loop": Program(
        """
def epoch():
    loader = torch.utils.data.DataLoader(torch.arange(1024), batch_size=512)
    for numbers in loader:
        x = batch()  # here
        train(model(x).square().mean())
    optimizer.zero_grad()
    train(model(torch.randn(1, 256, device="cuda")).square().mean())

epoch()
""",
        HolderKind.VARIABLE,
        "x (local of epoch)",
    ),
    "an output of a notebook": Program(
        """
Out = {}
for cell in range(3):
    x = batch()
    train(model(x).square().mean())
    Out[cell] = x  # here
    del x
train(model(torch.randn(1, 256, device="cuda")).square().mean())
""",
        HolderKind.NOTEBOOK_OUTPUT,
        "Out[1] (global)",
    ),
    "a graph that is kept for later": Program(
        """
x = batch()
first = model(x).exp().mean()  # here
first.backward(retain_graph=True)
del x
for _ in range(4):
    train(model(batch()).square().mean())
""",
        HolderKind.AUTOGRAD_GRAPH,
        "first → grad_fn",
        GRAPH,
    ),
    "gradients of an input": Program(
        """
attack = torch.zeros(512, 256, device="cuda", requires_grad=True)  # here
for _ in range(3):
    train(model(batch() + attack).square().mean())
""",
        HolderKind.ATTRIBUTE,
        "attack.grad (global)",
    ),
    "a result in a future": Program(
        """
waiting = []
for _ in range(4):
    waiting.append(torch.futures.Future())
    waiting[-1].set_result(batch())
    train(model(batch()).square().mean())
""",
        HolderKind.OUTSIDE_PYTHON,
        "no Python tensor refers to it",
    ),
    "a copy of all weights": Program(
        """
best = {}
for _ in range(3):
    train(model(batch()).square().mean())
    best = {name: value.clone() for name, value in model.state_dict().items()}  # here
""",
        HolderKind.CONTAINER,
        "best['0.weight'] (global)",
        least=256 * 256 * 4,
    ),
}


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    gc.collect()
    yield
    gc.enable()
    gc.collect()


NUMBERS = count()


@contextmanager
def main_program(source: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ModuleType, CodeType, str]]:
    """Yield a program that is the main module for a while, its code, and the line to change."""
    file = f"/programs/leak{next(NUMBERS)}.py"
    lines = source.splitlines(keepends=True)
    linecache.cache[file] = (len(source), None, lines, file)
    program = ModuleType("__main__")
    program.__file__ = file
    line = next((f"{file}:{number}" for number, line in enumerate(lines, 1) if "# here" in line), "")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "__main__", program)
        yield program, compile(source, file, "exec"), line


def predicted(body: str, monkeypatch: pytest.MonkeyPatch, *, holders: bool = True) -> tuple[Trace, str]:
    """Return the trace, and the line to change."""
    of = main_program(BEGIN + body, monkeypatch)
    with of as (program, code, line), memviz.predicting(card="L4", holders=holders) as run:
        exec(code, vars(program))
    return run.trace, line


def recorded(body: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Trace, str]:
    """The same program on tensors of the CPU, in a real process, recorded like a GPU's."""
    gpu, of = FakeGpu(), main_program(f"{_on_cpu(BEGIN)}watch(model, optimizer)\n{_on_cpu(body)}", monkeypatch)
    with of as (program, code, line), memviz.recording(accelerator=gpu.accelerator, holders=True) as run:
        vars(program)["watch"] = run.label
        with watching_torch(gpu):
            exec(code, vars(program))
    assert run.trace is not None
    return run.trace, line


def _on_cpu(source: str) -> str:
    return source.replace(".cuda()", "").replace('device="cuda"', 'device="cpu"')


def expect_holder(trace: Trace, program: Program, line: str) -> None:
    """The holder that is expected was found, at any moment, and on this line alone."""
    rows = trace.devices[0].holders
    assert rows is not None
    texts = ([trace.strings[code] for code in column] for column in (rows.chain, rows.place))
    held = set(zip((HolderKind(kind).name for kind in rows.kind), *texts, strict=True))
    chain = re.escape(program.chain).replace("@", r"\d+")
    places = {place for kind, way, place in held if kind == program.kind.name and re.match(chain, way)}
    assert places == {line}, sorted(held)


QUICK = ("a list of losses", "an exception in a variable")


def named(names: Iterable[str]) -> pytest.MarkDecorator:
    rows = [pytest.param(PROGRAMS[name], id=name, marks=() if name in QUICK else pytest.mark.slow) for name in names]
    return pytest.mark.parametrize("program", rows)


@named(PROGRAMS)
def test_what_keeps_tensors_is_named_with_the_line_to_change(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    trace, line = predicted(program.source, monkeypatch)
    expect_holder(trace, program, line)
    all_found = findings(trace, trace.devices[0])
    found = [finding for finding in all_found if finding.holder and finding.kind is not FindingKind.KEPT_TOO_LONG]
    kinds = [finding.kind for finding in found]
    assert kinds == ([program.finding] if program.finding else []), [finding.sentence for finding in found]
    for finding in found:
        assert finding.bytes >= program.least
        assert finding.line == line and line in finding.remedy


ONE_OF_EACH_KIND = {program.kind: name for name, program in reversed(PROGRAMS.items())}


@named(dict.fromkeys((*QUICK, *ONE_OF_EACH_KIND.values())))
def test_a_real_process_says_the_same(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    trace, line = recorded(program.source, monkeypatch)
    expect_holder(trace, program, line)


def test_every_kind_of_holder_has_a_program() -> None:
    assert {program.kind for program in PROGRAMS.values()} == set(HolderKind)
    assert len(PROGRAMS) >= 20


def test_what_the_next_forward_finds_is_named_where_holders_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    trace, line = predicted(
        """
for _ in range(4):
    x = batch()  # here
    train(model(x).square().mean())
""",
        monkeypatch,
    )
    (finding,) = findings(trace, trace.devices[0])
    assert (finding.kind, finding.holder, finding.line) == (FindingKind.KEPT_TOO_LONG, "x", line)
    assert f"`del` x before the next step’s forward; {line} stores it" in finding.remedy


def test_a_container_says_its_length_and_how_it_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    trace, _ = predicted(
        """
import memviz
def main():
    losses = []
    for number in range(5):
        train(model(batch()).square().mean())
        losses.append(model(batch()).exp().sum())
        memviz.mark(f"mark {number}")
main()
""",
        monkeypatch,
    )
    device = trace.devices[0]
    held = {row: one for row in range(len(lifetimes(device))) if (one := held_by(trace, device, row)) is not None}
    kept = {row: one for row, one in held.items() if one.chain.startswith("losses[1]")}
    assert kept and {one.growth for one in kept.values()} == {"+1 per step"}
    assert not any(one.growth for one in held.values() if not one.chain.startswith("losses"))
    (finding,) = [one for one in findings(trace, device) if one.holder == "losses"]
    assert "(length +1 per step)" in finding.sentence
    assert "list of 2, +1 per step" in str(allocation_html(trace, allocation(trace, device, min(kept))))

    events = [event_of_mark(trace, device, f"mark {number}") for number in (0, 4)]
    before, after = (memviz.open(trace).live_at(event=event).by("holder") for event in events)
    change = after.since(before)
    # Of each loss: the input, the first layer's output, and the result of exp.
    assert change.rows[0].change == 4 * 3 * 512 * 256 * 4
    assert "Most of it: losses (autograd graph), +6.00 MiB, +1.50 MiB per step." in str(change.headline)
    grown = growth(trace, device, "holder", within=(events[0], events[1]))
    html = str(growth_html(grown))
    assert "from the mark mark 0 to the mark mark 4" in html
    assert "losses (autograd graph)" in html and "A mark" in html


@pytest.mark.slow
def test_a_comparison_says_which_holder_grew(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = "seen = []\nfor _ in range(4):\n    x = batch()\n    train(model(x).square().mean())\n"
    before, _ = predicted(loop, monkeypatch)
    after, _ = predicted(f"{loop}    seen.append(x)\n", monkeypatch)
    sides = [(trace, trace.devices[0]) for trace in (before, after)]
    grown = [row.thing.label for row in changes(sides, "holder").rows if row.delta(1) > 0]
    assert grown == ["seen"]
    html = waterfall_html(waterfall(changes(sides, "holder"), 1), "", ("a", "b"), has_holders=True)
    assert 'data-value="holder"' in html and "seen" in html
    assert 'data-value="holder"' not in waterfall_html(waterfall(changes(sides), 1), "", ("a", "b"))


@pytest.mark.slow
def test_what_fills_a_card_is_named_though_holders_were_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    source = """
outputs = []
try:
    while True:
        x = torch.randn(1 << 20, 256, device="cuda")
        output = model(x)
        output.sum().backward()
        outputs.append(output.detach())  # here
except torch.OutOfMemoryError:
    pass
"""
    trace, line = predicted(source, monkeypatch, holders=False)
    (finding,) = [finding for finding in findings(trace, trace.devices[0]) if finding.kind is FindingKind.GROWING]
    assert (finding.holder, finding.line) == ("outputs", line)
    assert f"outputs keeps it ({line})" in finding.remedy
