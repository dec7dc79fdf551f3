"""A predicted run: figures, order, categories, phases, stacks, a file that reads back; the same on real tensors."""

import gc
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

from memviz.allocator.replayer import ReplayedEstimate, Replayer
from memviz.allocator.settings import parse_settings
from memviz.analysis.actions.proposals import ActionKind, kinds_of, proposal
from memviz.analysis.findings.finding import FindingKind
from memviz.analysis.findings.ranking import findings
from memviz.errors import UsageError
from memviz.predictor.cards import card_named
from memviz.predictor.device import PredictedDevice
from memviz.trace.load import load_trace
from memviz.trace.model import Action, Category, Phase, Stage, Trace
from memviz.trace.write import write_pickle
from sample_traces import gpt
from tests.predictor.rows import A100, WORKSPACE, Row, allocations, names
from tests.replays import replay


class Block(nn.Module):
    """Attention by single operators, so that every device runs the same ones."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.second_norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.first_norm(x)).chunk(3, -1)
        query, key, value = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts)
        later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        weights = (query @ key.transpose(-1, -2) / 8).masked_fill(later, float("-inf")).softmax(-1)
        x = x + self.out((weights @ value).transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.second_norm(x))))


class Language(nn.Module):
    def __init__(self, words: int = 503, width: int = 64, heads: int = 4, blocks: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, words: Tensor) -> Tensor:
        x = self.embedding(words)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Picture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.batch_norm = nn.BatchNorm2d(16)
        self.second = nn.Conv2d(16, 32, 3, stride=2)
        self.group_norm = nn.GroupNorm(4, 32)
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.relu(self.batch_norm(self.first(x))), 2)
        return self.head(functional.silu(self.group_norm(self.second(x))).mean((2, 3)))


def train(model: nn.Module, inputs: Tensor, targets: Tensor, optimizer: torch.optim.Optimizer) -> None:
    functional.cross_entropy(model(inputs).flatten(0, -2), targets.flatten()).backward()
    optimizer.step()
    optimizer.zero_grad()


GiB = 1 << 30
UNKNOWN, PARAMETER, GRADIENT, STATE, ACTIVATION, TEMPORARY, INPUT, OUTPUT, WORK, *_ = Category
NONE, FORWARD, BACKWARD, STEP = Phase


def two_layers() -> nn.Module:
    with torch.device("meta"):
        return nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256, bias=False))


def trained(device: PredictedDevice, model: nn.Module, steps: int = 1) -> Trace:
    device.place(model)
    optimizer = torch.optim.AdamW(model.parameters())
    inputs = torch.zeros(32, 256, device=device.torch_device)
    device.label(inputs, Category.INPUT)
    for _ in range(steps):
        with device.phase("forward"):
            loss = model(inputs).square().mean()
        with device.phase("backward"):
            loss.backward()
        with device.phase("optimizer step"):
            optimizer.step()
            optimizer.zero_grad()
        del loss
    return device.finish()


def test_every_allocation_of_a_training_step(device: PredictedDevice) -> None:
    model = two_layers()
    rows = allocations(trained(device, model))
    large, hidden, out = 256 * 512 * 4, 32 * 512 * 4, 32 * 256 * 4
    assert [row for row in rows if row.size >= 512] == [
        Row("_to_copy", large, PARAMETER, NONE, "0"),
        Row("_to_copy", 2048, PARAMETER, NONE, "0"),
        Row("_to_copy", large, PARAMETER, NONE, "2"),
        Row("zeros", out, INPUT, NONE, ""),
        Row("addmm", hidden, ACTIVATION, FORWARD, "0"),
        Row("addmm", WORKSPACE, WORK, FORWARD, "0"),
        Row("relu", hidden, ACTIVATION, FORWARD, "1"),
        Row("mm", out, OUTPUT, FORWARD, "2"),
        Row("pow_Tensor_Scalar", out, TEMPORARY, FORWARD, ""),
        Row("div_Scalar", out, TEMPORARY, BACKWARD, ""),
        Row("pow_Tensor_Scalar", out, TEMPORARY, BACKWARD, ""),
        Row("mul_Scalar", out, TEMPORARY, BACKWARD, ""),
        Row("mul_Tensor", out, TEMPORARY, BACKWARD, ""),
        Row("mm", large, GRADIENT, BACKWARD, "2"),
        Row("mm", WORKSPACE, WORK, BACKWARD, "2"),
        Row("mm", hidden, TEMPORARY, BACKWARD, "2"),
        Row("threshold_backward", hidden, TEMPORARY, BACKWARD, "1"),
        Row("mm", large, GRADIENT, BACKWARD, "0"),
        Row("sum_dim_IntList", 2048, GRADIENT, BACKWARD, "0"),
        *(Row("zeros_like", size, STATE, STEP, "") for size in (large, large, 2048, 2048, large, large)),
        *(Row("_foreach_sqrt", size, TEMPORARY, STEP, "") for size in (large, 2048, large)),
    ]


def test_stacks_and_phases_are_the_programs_own(device: PredictedDevice) -> None:
    trace = trained(device, two_layers())
    events = trace.devices[0].events
    backward = "at::_ops::threshold_backward::call"
    at = next(at for at, stack in enumerate(events.stack.tolist()) if backward in names(trace, stack))
    stack = list(names(trace, int(events.stack[at])))
    assert stack[:2] == [backward, "torch::autograd::generated::ReluBackward0::apply()"]
    forward = list(names(trace, int(events.forward_stack[at])))
    assert forward[0] == "at::_ops::relu::call"
    assert {"forward", "trained"} <= set(forward)
    files = {trace.strings[code] for code in trace.stacks.frames.filename.tolist()}
    assert not [file for file in files if "/predictor/" in file and "/tests/" not in file]
    assert any(file.endswith("test_predicted_device.py") for file in files)
    marks = trace.devices[0].annotations
    said = [(trace.strings[name], Stage(stage).name) for name, stage in zip(marks.name, marks.stage, strict=True)]
    phases = ["forward", "backward", "optimizer step"]
    assert said == [(name, stage) for name in phases for stage in ("START", "END")]
    times = np.concatenate([marks.time_us, trace.devices[0].events.time_us])
    assert len(np.unique(times)) == len(times)


@pytest.mark.parametrize("text", ["", "expandable_segments:True", "max_split_size_mb:20,roundup_power2_divisions:4"])
def test_a_replay_of_the_trace_lands_on_every_address(text: str) -> None:
    with PredictedDevice(A100, settings=parse_settings(text)) as device:
        trace = trained(device, two_layers(), steps=3)
        device.empty_cache()
    replayed = replay(trace)
    assert replayed.exact
    assert replayed.peak_reserved_bytes == device.peak_reserved_bytes
    assert replayed.peak_requested_bytes == device.peak_requested_bytes


def test_the_file_reads_back_with_all_that_is_known(tmp_path: Path, device: PredictedDevice) -> None:
    trace = trained(device, two_layers())
    with open(tmp_path / "run.pickle", "wb") as file:
        write_pickle(trace, file)
    read = load_trace(tmp_path / "run.pickle")
    assert allocations(read) == allocations(trace)
    assert read.about.label == "predicted for NVIDIA A100 40GB"
    assert "CUDA context" in read.about.facts["not predicted"]
    stacks = [[list(names(each, int(stack))) for stack in each.devices[0].events.stack] for each in (read, trace)]
    assert stacks[0] == stacks[1]
    blocks = [(each.devices[0].blocks.address, each.devices[0].blocks.state) for each in (read, trace)]
    assert all(np.array_equal(one, other) for one, other in zip(*blocks, strict=True))


def test_work_is_counted(device: PredictedDevice) -> None:
    left = torch.empty(64, 32, device=device.torch_device)
    out = left @ torch.empty(32, 16, device=device.torch_device)
    moved = device.bytes_moved
    out.t()
    assert device.bytes_moved == moved
    out.add_(1)
    assert device.bytes_moved == moved + 4 * 64 * 16
    assert device.flops == 2 * 64 * 32 * 16
    # Memory that is only taken is not written to.
    assert moved == 4 * (64 * 32 + 32 * 16 + 64 * 16)


def test_a_product_that_is_added_in_place_is_as_much_work_and_takes_the_same_workspace() -> None:
    seen = []
    for name in ("addmm", "addmm_"):
        with PredictedDevice(A100) as device:
            total, left, right = (
                torch.empty(shape, device=device.torch_device) for shape in ((8, 4), (8, 16), (16, 4))
            )
            before = device.allocated_bytes
            out = getattr(total, name)(left, right)
            seen.append((device.flops, device.allocated_bytes - before - (512 if out is not total else 0)))
    assert seen[0] == seen[1]
    assert seen[0][0] == 2 * 8 * 16 * 4
    assert seen[0][1] > 0


def test_recomputed_activations_are_activations_and_belong_to_backward(device: PredictedDevice) -> None:
    from torch.utils.checkpoint import checkpoint

    model = two_layers()
    device.place(model)
    inputs = torch.zeros(32, 256, device=device.torch_device, requires_grad=True)
    checkpoint(model, inputs, use_reentrant=False).sum().backward()
    rows = allocations(device.finish())
    relus = [(row.category, row.phase, row.module) for row in rows if row.operator == "relu"]
    assert relus == [(ACTIVATION, FORWARD, "1"), (ACTIVATION, BACKWARD, "1")]


def test_only_what_dies_within_the_module_that_made_it_is_temporary(device: PredictedDevice) -> None:
    class Squares(torch.nn.Module):
        def forward(self, values: torch.Tensor) -> torch.Tensor:
            return (values + 1).square()

    model = torch.nn.Sequential(Squares(), Squares())
    with torch.no_grad():
        device.place(model)
        model(torch.zeros(256, device=device.torch_device))
        rows = allocations(device.finish())
    made = [(row.operator, row.category) for row in rows if row.module]
    assert made == [("add_Tensor", TEMPORARY), ("pow_Tensor_Scalar", ACTIVATION), ("add_Tensor", TEMPORARY), made[-1]]
    assert made[-1] == ("pow_Tensor_Scalar", OUTPUT)


def test_what_a_policy_saves_is_not_computed_again(device: PredictedDevice) -> None:
    from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

    def policy(context: object, operator: object, *args: object, **kwargs: object) -> CheckpointPolicy:
        saves = operator is torch.ops.aten.addmm.default
        return CheckpointPolicy.MUST_SAVE if saves else CheckpointPolicy.PREFER_RECOMPUTE

    model = two_layers()
    device.place(model)
    inputs = torch.zeros(32, 256, device=device.torch_device, requires_grad=True)
    contexts = partial(create_selective_checkpoint_contexts, policy)
    checkpoint(model, inputs, use_reentrant=False, context_fn=contexts).sum().backward()
    trace = device.finish()
    counts = Counter(row.operator for row in allocations(trace) if row.category is not WORK)
    assert (counts["addmm"], counts["relu"]) == (1, 2)
    assert replay(trace).exact


def test_cycles_go_where_an_outermost_phase_ends(device: PredictedDevice) -> None:
    class Holder:
        pass

    with device.phase("step"):
        with device.phase("forward"):
            holder = Holder()
            holder.itself = holder
            holder.tensor = torch.zeros(1024, device=device.torch_device)
            del holder
        assert device.allocated_bytes == 4096
    assert device.allocated_bytes == 0


def test_a_module_changes_its_type_weight_by_weight(device: PredictedDevice) -> None:
    """Like in torch, each new weight is allocated before the old one is freed."""
    model = two_layers()
    device.place(model)
    before = len(device.finish().devices[0].events)
    weight = model[0].weight
    model.to(torch.bfloat16)
    assert model[0].weight is weight
    trace = device.finish()
    events = trace.devices[0].events
    moves = [
        (Action(int(action)), int(size))
        for action, size in zip(events.action[before:], events.size[before:], strict=True)
        if action in (Action.ALLOC, Action.FREE_REQUESTED)
    ]
    sizes = [256 * 512, 512, 512 * 256]
    assert moves == [step for size in sizes for step in ((Action.ALLOC, 2 * size), (Action.FREE_REQUESTED, 4 * size))]
    assert {row.category for row in allocations(trace)} == {PARAMETER}


def test_tied_weights_stay_tied_and_take_memory_once() -> None:
    with torch.device("meta"):
        model = nn.ModuleList([nn.Embedding(1000, 64), nn.Linear(64, 1000, bias=False)])
    model[1].weight = model[0].weight
    for built in (model, nn.ModuleList([nn.Embedding(1000, 64), nn.Linear(64, 1000, bias=False)])):
        built[1].weight = built[0].weight
        with PredictedDevice(A100) as device:
            device.place(built)
            assert built[0].weight is built[1].weight
            assert device.allocated_bytes == 256_000


def test_a_module_that_several_hold_moves_its_buffers_once(device: PredictedDevice) -> None:
    shared = nn.Module()
    shared.register_buffer("table", torch.ones(4096))
    nn.ModuleList([nn.ModuleList([shared]), nn.ModuleList([shared])]).to("cuda")
    trace = device.finish()
    assert trace.devices[0].events.size[trace.devices[0].events.action == Action.ALLOC].tolist() == [4 * 4096]


def test_the_process_is_as_before_when_it_ends_even_by_an_error() -> None:
    before = (nn.Module.__call__, nn.Module.to, torch.cuda.is_available(), torch.amp.autocast_mode.autocast.__enter__)
    was_on = gc.isenabled()
    with pytest.raises(KeyError), PredictedDevice(A100):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            torch.ones(2, 2, device="cuda") @ torch.ones(2, 2, device="cuda")
        raise KeyError
    after = (nn.Module.__call__, nn.Module.to, torch.cuda.is_available(), torch.amp.autocast_mode.autocast.__enter__)
    assert after == before
    assert gc.isenabled() == was_on
    # What torch does with tensors without data is torch's own again.
    query = torch.empty(1, 1, 4, 8, device="meta", requires_grad=True)
    assert "Flash" not in str(functional.scaled_dot_product_attention(query, query, query).grad_fn)


def test_there_is_one_at_a_time() -> None:
    with PredictedDevice(A100):
        with pytest.raises(UsageError, match="only one is possible at a time"), PredictedDevice(A100):
            pass
        assert torch.cuda.is_available()
    with PredictedDevice(A100) as device:
        assert device.allocated_bytes == 0


def test_a_step_of_a_language_model_releases_all_but_its_state(device: PredictedDevice) -> None:
    with torch.device("meta"):
        model = Language()
    device.place(model)
    optimizer = torch.optim.AdamW(model.parameters())
    words = torch.zeros(2, 32, dtype=torch.long, device=device.torch_device)
    held = []
    for _ in range(3):
        functional.cross_entropy(model(words).flatten(0, 1), words.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
        held.append(device.allocated_bytes)
    rows = Counter(row.category for row in allocations(device.finish()))
    assert held[0] == held[1] == held[2]
    weights = len(list(model.parameters()))
    assert (rows[PARAMETER], rows[GRADIENT], rows[STATE]) == (weights, 3 * weights, 2 * weights)


_SCALAR = 16
"""Bytes: on a CPU the loss and wrapped numbers have memory of the same allocator."""


def taken_by(run: Callable[[], object]) -> list[tuple[tuple[str, ...], int]]:
    """Return operators (outermost first) and bytes of each larger allocation on the host."""
    with profile(profile_memory=True, activities=[ProfilerActivity.CPU]) as profiler:
        run()
    events = profiler.profiler.kineto_results.events()
    spans = [(event.start_ns(), event.end_ns(), event.name()) for event in events if event.name().startswith("aten::")]
    taken = [(event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"]
    return [
        (tuple(name[6:] for begin, end, name in spans if begin <= at <= end), size)
        for at, size in taken
        if size > _SCALAR
    ]


def real(build: Callable[[], nn.Module], inputs: Tensor, targets: Tensor) -> list[tuple[tuple[str, ...], int]]:
    """Return what the second step takes."""
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    train(model, inputs, targets, optimizer)
    return taken_by(lambda: train(model, inputs, targets, optimizer))


def predicted(build: Callable[[], nn.Module], inputs: Tensor, targets: Tensor) -> list[tuple[str, int]]:
    with torch.device("meta"):
        model = build()
    with PredictedDevice(A100) as device:
        device.place(model)
        there = inputs.to(device.torch_device), targets.to(device.torch_device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
        train(model, *there, optimizer)
        before = len(allocations(device.finish()))
        train(model, *there, optimizer)
        rows = allocations(device.finish())[before:]
        return [(row.operator, row.size) for row in rows if row.size > _SCALAR]


def test_a_language_model_takes_the_same_bytes_in_each_step() -> None:
    words = torch.randint(0, 503, (2, 32))
    # The CPU's kernel has a buffer of its own there.
    own = ("native_layer_norm_backward", "resize_")
    # The card's one multiplies into a buffer first.
    softmax = "_softmax_backward_data"
    found = real(Language, words, words)
    truth = Counter(size for around, size in found if around[-2:] != own and softmax not in around)
    ours = Counter(size for name, size in predicted(Language, words, words) if name != softmax)
    assert ours == truth
    assert sum(ours.values()) > 100


def test_a_model_of_pictures_takes_the_same_bytes_where_kernels_have_no_buffers_of_their_own() -> None:
    pictures, kinds = torch.randn(4, 3, 32, 32), torch.randint(0, 10, (4,))
    buffered = ("convolution", "batch_norm", "group_norm_backward")
    truth = Counter(
        size
        for around, size in real(Picture, pictures, kinds)
        if not any(part in name for name in around for part in buffered)
    )
    ours = Counter(
        size for operator, size in predicted(Picture, pictures, kinds) if not any(part in operator for part in buffered)
    )
    assert ours == truth
    assert sum(ours.values()) > 15


@pytest.mark.parametrize("shape", [(2, 3, 8), (2, 3, 4, 8)])
@pytest.mark.parametrize("turned", [False, True])
def test_a_linear_layer_takes_the_same_bytes_however_its_input_lies(shape: tuple[int, ...], turned: bool) -> None:
    def build() -> nn.Module:
        return nn.Linear(8, 8)

    def run(model: nn.Module, device: torch.device) -> None:
        x = torch.zeros(shape, device=device)
        model(x.transpose(0, 1) if turned else x).sum().backward()

    model = build()
    truth = Counter(size for _, size in taken_by(lambda: run(model, torch.device("cpu"))))
    with torch.device("meta"):
        model = build()
    with PredictedDevice(A100) as device:
        device.place(model)
        before = len(allocations(device.finish()))
        run(model, device.torch_device)
        ours = Counter(row.size for row in allocations(device.finish())[before:] if row.category.name != "WORKSPACE")
    assert Counter({size: count for size, count in ours.items() if size > _SCALAR}) == truth


# Estimates from edited requests, compared to a prediction of the program with the same change.


CARD, RELEASE = card_named("A10"), (2, 13)
NEAR = 0.03
"""Tolerance as a share of the peak of live bytes."""
RESERVED_NEAR = 0.05
"""Tolerance of reserved bytes: segments are coarse, and one of 20 MiB is much of a small peak."""


@pytest.fixture(params=[(128, 512), (8192, 512)], ids=["layers outweigh the head", "the head outweighs layers"])
def shape(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Sequence length of a program whose peak is in the backward of the layers, or at the loss."""
    vocabulary, length = request.param
    monkeypatch.setattr(gpt, "VOCABULARY", vocabulary)
    return int(length)


def trained_gpt(
    length: int, *, checkpointed: bool = False, dtype: torch.dtype = torch.float32, autocast: bool = False
) -> Trace:
    with PredictedDevice(CARD, release=RELEASE) as device:
        model = gpt.GPT(checkpointed=checkpointed).to("cuda", dtype)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
        for number in range(2):
            with device.phase(f"ProfilerStep#{number}"):
                optimizer.zero_grad()
                tokens = torch.randint(gpt.VOCABULARY, (8, length), device="cuda")
                with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
                    _, loss = model(tokens, tokens)
                loss.backward()
                optimizer.step()
        return device.finish()


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(512, 1024)
        self.head = nn.Linear(1024, 40_000)

    def forward(self, given: Tensor) -> Tensor:
        hidden = self.up(given)
        result: Tensor = self.head(hidden)
        return result


def applied(*, lets_go: bool) -> Trace:
    """Predict a large output that its name holds until the next one is computed."""
    with PredictedDevice(CARD, release=RELEASE) as device:
        model = Wide().to("cuda")
        given = torch.empty(256, 512, device="cuda")
        output = None
        for _ in range(3):
            if lets_go:
                del output
            with torch.no_grad():
                output = model(given)
        return device.finish()


def of_kind(trace: Trace, kind: ActionKind) -> tuple[int, int, int]:
    """Peaks of live and reserved bytes by the estimate, and how many live bytes it saves."""
    device = trace.devices[0]
    chosen = next(finding for finding in findings(trace, device) if kind in kinds_of(finding))
    made = proposal(trace, device, chosen, kind)
    assert made is not None
    result = ReplayedEstimate(Replayer(trace).estimate(), Replayer(trace).estimate(made.trace))
    return result.after.peak_requested_bytes, result.after.peak_reserved_bytes, -result.requested_change


def peaks(trace: Trace) -> tuple[int, int]:
    figures = Replayer(trace).estimate()
    return figures.peak_requested_bytes, figures.peak_reserved_bytes


def expect_near(recorded: Trace, kind: ActionKind, changed: Trace) -> None:
    live, reserved, saved = of_kind(recorded, kind)
    true_live, true_reserved = peaks(changed)
    assert saved > 0
    assert live == pytest.approx(true_live, rel=NEAR)
    assert reserved == pytest.approx(true_reserved, rel=RESERVED_NEAR)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (ActionKind.CHECKPOINT, {"checkpointed": True}),
        (ActionKind.HALF_PRECISION, {"dtype": torch.bfloat16}),
        (ActionKind.AUTOCAST, {"autocast": True}),
    ],
)
def test_an_estimate_peaks_as_the_changed_program_does(shape: int, kind: ActionKind, change: dict[str, Any]) -> None:
    expect_near(trained_gpt(shape), kind, trained_gpt(shape, **change))


@pytest.mark.slow
def test_what_is_in_mixed_precision_already_is_not_halved_again(shape: int) -> None:
    trace = trained_gpt(shape, autocast=True)
    chosen = next(finding for finding in findings(trace, trace.devices[0]) if finding.kind is FindingKind.ACTIVATIONS)
    for kind in (ActionKind.AUTOCAST, ActionKind.HALF_PRECISION):
        assert proposal(trace, trace.devices[0], chosen, kind) is None


def test_an_output_let_go_earlier_peaks_as_the_program_that_lets_it_go() -> None:
    expect_near(applied(lets_go=False), ActionKind.FREE_EARLIER, applied(lets_go=True))


@pytest.mark.slow
def test_an_estimate_that_changes_nothing_saves_nothing(shape: int) -> None:
    trace = trained_gpt(shape)
    result = ReplayedEstimate(Replayer(trace).estimate(), Replayer(trace).estimate(trace))
    assert (result.requested_change, result.reserved_change) == (0, 0)
