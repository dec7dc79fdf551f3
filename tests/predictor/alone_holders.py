"""Small programs that keep a tensor, each in a way that people write: what keeps it is found and named."""

import gc
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import memviz
from memviz.analysis.allocations import allocation
from memviz.analysis.findings.finding import FindingKind
from memviz.analysis.findings.ranking import findings
from memviz.analysis.holders import held_rows, held_until, holder_rows
from memviz.commands import main
from memviz.errors import TraceError
from memviz.predictor.holders import Holder, find_holders
from memviz.trace.memviz_labels import to_text
from memviz.trace.model import HolderKind, Holders, Trace
from memviz.trace.strip import strip_paths
from memviz.trace.write import snapshot_dict, write_pickle
from memviz.ui.explore.inspector import allocation_html
from tests.house.repository import ROOT
from tests.traces import read


def key(tensor: torch.Tensor) -> int | None:
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else None


def holder_of(storage: int | None) -> Holder:
    assert storage is not None
    return find_holders([storage], key, seconds=60)[storage]


@pytest.fixture(autouse=True)
def no_collection() -> Iterator[None]:
    """Cycles wait, as they may in a program."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Trainer:
    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.losses: list[Any] = []

    def step(self) -> torch.Tensor:
        loss = self.model(torch.randn(2, 4)).square().mean()
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss)
        return loss


def test_what_an_object_has_is_told_apart_once_its_dictionary_exists():
    """Python makes it when somebody asks, as pickle and many libraries do; then it is an object on the way."""
    trainer = Trainer()
    storage = key(trainer.model[0].weight)
    before = holder_of(storage)
    assert vars(trainer)
    assert (before.owner, holder_of(storage).owner) == ("trainer.model", "trainer.model")


def test_weights_gradients_and_states_are_named_as_the_program_reads_them():
    trainer = Trainer()
    trainer.step()
    weight = trainer.model[0].weight
    state = trainer.optimizer.state[weight]["exp_avg"]
    found = find_holders([key(weight), key(weight.grad), key(state)], key, seconds=60)
    del state
    weight_chain, gradient_chain = found[key(weight)].chain, found[key(weight.grad)].chain
    assert weight_chain.startswith("weight (local of test_weights")
    assert gradient_chain.startswith("weight.grad (local of test_weights")
    state = trainer.optimizer.state[weight]["exp_avg"].untyped_storage()._cdata
    held = holder_of(state)
    assert held.chain.startswith("trainer.optimizer.state[parameter]['exp_avg'] (local of test_weights")
    assert held.owner == "trainer.optimizer"


class Record:
    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = torch.randn(5)


# Other ways are those of whole programs, in alone_kept_tensors.py.
WAYS: dict[str, tuple[Callable[[], Any], Callable[[Any], torch.Tensor], HolderKind, str]] = {
    "partial": (
        lambda: partial(print, torch.randn(5)), lambda holder: holder.args[0], HolderKind.CONTAINER, "holder.args[0]"
    ),
    "slots": (Record, lambda holder: holder.value, HolderKind.ATTRIBUTE, "holder.value"),
    "dictionary": (
        lambda: {f"step {number}": torch.randn(5) for number in range(3)},
        lambda holder: holder["step 2"],
        HolderKind.CONTAINER,
        "holder['step 2'] (local of test_each_way_to_keep_a_tensor_is_named), dict of 3",
    ),
    "buffer": (
        lambda: nn.BatchNorm1d(4), lambda holder: holder.running_mean, HolderKind.ATTRIBUTE, "holder.running_mean"
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_each_way_to_keep_a_tensor_is_named(way):
    make, tensor_in, kind, part = WAYS[way]
    holder = make()
    held = holder_of(key(tensor_in(holder)))
    assert held.kind is kind
    assert part in held.chain
    assert held.chain.startswith("holder")
    assert re.search(r"\)(, (list|dict|set|deque) of \d+)?$", held.chain)
    del holder


def test_a_cycle_waits_for_collection_with_what_its_graph_saved() -> None:
    cycle: list[Any] = [torch.randn(7)]
    cycle.append(cycle)
    storage = key(cycle[0])
    del cycle
    assert holder_of(storage).kind is HolderKind.UNCOLLECTED_CYCLE
    gc.collect()
    assert holder_of(storage).kind is HolderKind.OUTSIDE_PYTHON
    # No object of Python refers to the input any more: the graph's node, in C++, keeps it.
    weight, inputs = torch.randn(7, 7, requires_grad=True), torch.randn(7, 7)
    storage = key(inputs)
    cycle = [inputs @ weight]
    cycle.append(cycle)
    del cycle, inputs
    held = holder_of(storage)
    assert held.kind is HolderKind.UNCOLLECTED_CYCLE and "saved" in held.chain
    gc.collect()
    assert weight is not None


def test_the_walk_keeps_nothing_computes_nothing_and_leaves_locals_as_they_are() -> None:
    kept = torch.randn(5)
    storage, gone = key(kept), []
    weak = __import__("weakref").finalize(kept, gone.append, True)
    holder_of(storage)
    del kept
    assert gone == [True]
    assert not weak.alive
    calls = []

    def block(value: torch.Tensor) -> torch.Tensor:
        calls.append(True)
        return value.sin().cos()

    loss = checkpoint(block, torch.randn(3, requires_grad=True), use_reentrant=False).sum()
    find_holders([0], key, seconds=60)
    assert len(calls) == 1
    loss.backward()
    here = locals()
    here["added"] = torch.randn(3)
    storage = key(here["added"])
    assert "added" in holder_of(storage).chain
    assert "added" in here


def noted(trace: Trace) -> list[tuple[Any, ...]]:
    rows = trace.devices[0].holders
    assert rows is not None
    texts = ([trace.strings[code] for code in column] for column in (rows.owner, rows.chain, rows.place))
    return list(zip(rows.event.tolist(), rows.address.tolist(), rows.kind.tolist(), *texts, strict=True))


def test_what_grows_step_by_step_is_grouped_by_its_list_and_the_file_keeps_it(tmp_path):
    """Nothing is freed later because holders were noted: the events are those of a run without."""
    events = []
    for holders in (False, True):
        with memviz.predicting(card="L4", holders=holders) as predicted:
            losses = []
            layer = nn.Linear(256, 256, device="cuda")
            for _ in range(3):
                loss = layer(torch.randn(512, 256, device="cuda")).square().sum()
                loss.backward(retain_graph=True)
                losses.append(loss)
            del loss, losses, layer
        events.append(predicted.trace.devices[0].events)
    assert np.array_equal(events[0].action, events[1].action)
    assert np.array_equal(events[0].size, events[1].size)

    path = tmp_path / "run.pickle"
    with path.open("wb") as file:
        write_pickle(predicted.trace, file)
    opened = memviz.open(path)
    assert noted(opened.trace) == noted(predicted.trace)
    bytes_of = {group.label: group.bytes for group in opened.peak().by("holder").groups}
    # The input and what the square keeps, of two steps whose losses are in the list.
    assert bytes_of["losses (autograd graph)"] == 2 * 2 * 512 * 256 * 4
    assert bytes_of["layer.weight"] == 2 * 256 * 256 * 4


def test_a_program_that_runs_out_is_told_what_holds_its_memory():
    kept = []
    with memviz.predicting(card="L4") as predicted, suppress(torch.cuda.OutOfMemoryError):
        while True:
            kept.append(torch.empty(1 << 30, device="cuda"))
    live = memviz.open(predicted.trace).live_at(event=int(predicted.trace.devices[0].holders.event[-1]) - 1)
    assert [(group.label, group.bytes) for group in live.by("holder").groups] == [("kept", len(kept) << 32)]
    trace = predicted.trace
    (finding,) = [one for one in findings(trace, trace.devices[0]) if one.kind is FindingKind.OUT_OF_MEMORY]
    assert finding.holder == "kept" and f"kept keeps most of it ({finding.line})." in finding.sentence
    assert re.fullmatch(r".*alone_holders\.py:\d+", finding.line)


def test_parameters_are_named_by_the_model_though_the_optimizer_is_nearer():
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Sequential(nn.Sequential(nn.Linear(3, 3))))

    model = Outer()
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    model.inner(torch.ones(3)).sum().backward()
    optimizer.step()
    weight = key(model.inner[0][0][0].weight)
    assert holder_of(weight).chain.startswith("model.inner.0.0.0.weight (local of test_parameters")


@pytest.mark.slow
def test_workspaces_are_named_and_no_holder_is_found_without_the_option():
    def peak(**options: Any) -> Any:
        with memviz.predicting(card="L4", **options) as predicted:
            layer = nn.Linear(64, 64, device="cuda")
            layer(torch.ones(8, 64, device="cuda")).sum().backward()
            del layer
        return memviz.open(predicted.trace).peak()

    bytes_of = {group.label: group.bytes for group in peak(holders=True).by("category").groups}
    held = {group.label: group.bytes for group in peak(holders=True).by("holder").groups}
    assert held["cuBLAS workspaces"] == bytes_of["workspace"] > 0
    assert [group.label for group in peak().by("holder").groups] == ["no holder recorded"]


LEAK = """import torch
def train():
    losses = []
    for step in range(3):
        losses.append(torch.ones(1 << 20, requires_grad=True, device="cuda").exp().sum())
    print(len(losses))
    torch.ones(1, device="cuda", requires_grad=True).sum().backward()
train()
"""


@pytest.mark.slow
def test_the_command_writes_holders_that_peak_and_diff_read(tmp_path, capfd):
    (tmp_path / "leak.py").write_text(LEAK)
    file = str(tmp_path / "run.pickle")
    command = [sys.executable, "-m", "memviz"]
    subprocess.run([*command, "predict", "--holders", "-o", file, str(tmp_path / "leak.py")], check=True)
    capfd.readouterr()
    assert main(["peak", "--by", "holder", "--json", file]) == 0
    rows = {row["key"]: row["bytes"] for row in json.loads(capfd.readouterr().out)["rows"]}
    # Of each loss: the leaf that its graph accumulates into, and the result that exp has saved.
    assert rows["losses (autograd graph)"] == 3 * 2 * (4 << 20)
    assert main(["diff", "--by", "holder", "--json", file, file]) == 0
    assert "losses (autograd graph)" in capfd.readouterr().out


def test_a_stripped_file_names_holders_without_folders():
    program = """def main():
    with memviz.predicting(card="L4", holders=True) as predicted:
        kept = torch.ones(1 << 10, device="cuda")
    return predicted.trace
"""
    names: dict[str, Any] = {"memviz": memviz, "torch": torch}
    exec(compile(program, "/home/somebody/secret/train.py", "exec"), names)
    trace = names["main"]()
    # The file cannot be read, so the line is where its frame was.
    ((*_, owner, chain, place),) = noted(trace)
    assert (owner, chain) == ("kept", "kept (local of main)")
    assert place.startswith("/home/somebody/secret/train.py:")
    ((*_, owner, chain, stripped),) = noted(strip_paths(trace))
    assert (owner, chain) == ("kept", "kept (local of main)")
    assert stripped == place.removeprefix("/home/somebody/secret/")


def test_the_inspector_escapes_what_holds_an_allocation():
    with memviz.predicting(card="L4", holders=True) as predicted:
        kept = {"<b>x": torch.ones(1 << 10, device="cuda")}
    trace, device = predicted.trace, predicted.trace.devices[0]
    html = str(allocation_html(trace, allocation(trace, device, 0)))
    assert "<dt>Held by</dt>" in html and "kept[&#x27;&lt;b&gt;x&#x27;] (local of" in html
    del kept


@pytest.mark.parametrize(
    ("column", "values", "dtype"),
    [
        ("kind", [len(HolderKind)], np.uint8),
        ("owner", [1 << 20], "<i4"),
        ("chain", [-1], "<i4"),
        ("event", [1 << 40], "<i8"),
        ("event", [-1], "<i8"),
        ("address", [1, 2], "<i8"),
    ],
)
def test_holders_that_cannot_be_are_refused(column, values, dtype):
    with memviz.predicting(card="L4", holders=True) as predicted:
        kept = torch.ones(1 << 10, device="cuda")
    root = snapshot_dict(predicted.trace)
    root["memviz"]["devices"][0]["holders"][column] = to_text(np.array(values, dtype))
    with pytest.raises(TraceError, match="memviz"):
        read(root)
    del kept


@pytest.mark.parametrize("seed", range(8))
def test_holders_of_an_untrusted_file_may_say_anything(seed):
    """Rows about any address and moment, repeated and contradicting each other, and texts of any length."""
    random = np.random.default_rng(seed)
    trace = memviz.open(ROOT / "sample_traces" / "training.pickle.gz").trace
    device, count = trace.devices[0], 500
    addresses = np.append(device.events.address, [-1, 0, 1 << 62])
    texts = ("", "<b>", "losses (autograd graph)", "x" * 100_000)
    codes = random.integers(len(trace.strings), len(trace.strings) + len(texts), (3, count))
    holders = Holders(
        np.sort(random.integers(0, len(device.events) + 1, count)),
        random.choice(addresses, count),
        random.integers(0, len(HolderKind), count).astype(np.uint8),
        *codes.astype(np.int32),
    )
    device = replace(device, holders=holders)
    trace = replace(trace, devices=(device,), strings=(*trace.strings, *texts))
    found = findings(trace, device)
    assert all(len(finding.sentence) + len(finding.remedy) < 1000 for finding in found)
    assert sum(group.bytes for group in memviz.open(trace).peak().by("holder").groups) > 0
    held = np.flatnonzero(holder_rows(device) >= 0)
    assert len(held) and (held_until(device)[held_rows(device) >= 0] >= 0).all()
    for row in held[:20].tolist():
        html = str(allocation_html(trace, allocation(trace, device, row)))
        assert "<b>" not in html.partition("Held by")[2].partition("</dd>")[0] and len(html) < 200_000
