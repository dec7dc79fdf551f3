"""A predicted run: figures, order, categories, phases, stacks, and a file that reads back."""

import gc
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from memviz.allocator.settings import parse_settings
from memviz.errors import UsageError
from memviz.predictor.device import PredictedDevice
from memviz.trace.load import load_trace
from memviz.trace.model import Action, Category, Phase, Stage, Trace
from memviz.trace.write import write_pickle
from tests.predictor.models import Language
from tests.predictor.rows import A100, WORKSPACE, Row, allocations, names
from tests.replays import replay

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
