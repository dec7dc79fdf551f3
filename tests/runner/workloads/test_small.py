"""The small twins: real numbers on a CPU, in which every block of the model can be seen."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import nn

from memviz.runner.plan import make_workload
from memviz.runner.workloads import WORKLOADS, Workload

CPU = torch.device("cpu")
VARIANTS = [*((kind.name, ()) for kind in WORKLOADS), ("cogvideox", (("size", "5b"),))]
UNUSED = {"sdxl_pipeline": ("text_encoder.encoder.layers.1", "text_encoder.final_layer_norm")}
"""SDXL takes what its smaller text encoder has before its last block."""
CASES = pytest.mark.parametrize(("name", "settings"), VARIANTS, ids=lambda each: each if isinstance(each, str) else "")


@cache
def twin(name: str, settings: tuple[tuple[str, str], ...]) -> Workload:
    return make_workload(name, dict(settings)).small()


def seeded(workload: Workload) -> nn.Module:
    torch.manual_seed(workload.seed)
    return workload.build()


def in_training(workload: Workload) -> Workload:
    return workload if workload.training else replace(workload, mode="training")


def output_of(workload: Workload, model: nn.Module) -> torch.Tensor:
    """The largest tensor of the output: pixels, or logits, also where the model keeps them to itself."""
    kept: list[torch.Tensor] = []
    head = getattr(model, "head", None)
    hook = head.register_forward_hook(lambda _module, _inputs, logits: kept.append(logits)) if head else None
    with torch.no_grad():
        output = model(**workload.inputs(CPU))
    if hook is not None:
        hook.remove()
        return kept[0]
    found = [output] if isinstance(output, torch.Tensor) else [each for each in output.values() if each is not None]
    return max(found, key=torch.numel)


def blocks_of(model: nn.Module) -> dict[str, nn.Module]:
    stacks = {name: each for name, each in model.named_modules() if isinstance(each, nn.ModuleList)}
    outer = [name for name in stacks if not any(name.startswith(f"{other}.") for other in stacks)]
    return {f"{name}.{number}": each for name in outer for number, each in enumerate(stacks[name])}


@pytest.mark.slow
@CASES
def test_a_training_step_reaches_every_weight(name, settings):
    workload = in_training(twin(name, settings))
    model = seeded(workload)
    loss = workload.loss(model(**workload.inputs(CPU)))
    loss.backward()
    assert loss.shape == ()
    assert loss.isfinite()
    unused = UNUSED.get(name, ())
    wanted = {key: each.grad for key, each in model.named_parameters() if not key.startswith(unused)}
    assert len(wanted) > 0.9 * len(list(model.parameters()))
    assert [key for key, grad in wanted.items() if grad is None or not grad.isfinite().all()] == []
    assert sum(parameter.numel() * parameter.element_size() for parameter in model.parameters()) < 500 * 2**20


@pytest.mark.slow
@CASES
def test_every_block_can_be_seen_in_the_output_which_its_seed_decides(name, settings):
    """A twin whose output is nearly its last bias would hide errors before it."""
    workload = twin(name, settings)
    model, right = seeded(workload), output_of(workload, seeded(workload))
    assert len(blocks_of(model)) >= 2
    assert right.isfinite().all()
    for key, block in blocks_of(model).items():
        if key in UNUSED.get(name, ()):
            continue
        kept = [parameter.clone() for parameter in block.parameters()]
        with torch.no_grad():
            for each in block.parameters():
                each.zero_()
            without = output_of(workload, model)
            for each, values in zip(block.parameters(), kept, strict=True):
                each.copy_(values)
        assert (without - right).norm() / right.norm() > 0.01, key
    torch.testing.assert_close(output_of(workload, model), right, rtol=0, atol=0)
    other = replace(workload, seed=workload.seed + 1)
    assert not torch.equal(right, output_of(other, seeded(other)))


@CASES
def test_twins_are_small_fp32_and_their_own_twins_micro_batches_differ_and_meta_has_the_same_shapes(name, settings):
    workload = twin(name, settings)
    assert workload.dtype == "fp32"
    assert workload.small() == workload
    assert workload.training == make_workload(name, dict(settings)).training
    first, again, second = (workload.inputs(CPU, number) for number in (0, 0, 1))
    empty = workload.inputs(torch.device("meta"))
    assert list(first) == list(empty)
    tensors = [key for key, value in first.items() if isinstance(value, torch.Tensor)]
    assert all(torch.equal(first[key], again[key]) for key in tensors)
    assert not all(torch.equal(first[key], second[key]) for key in tensors)
    assert all((first[key].shape, first[key].dtype) == (empty[key].shape, empty[key].dtype) for key in tensors)


TILED = [
    ("vae", {"height": "1024", "width": "512"}, (True, False)),
    ("vae", {"height": "4096", "width": "520"}, (True, True)),
    ("sdxl_pipeline", {}, (False, False)),
    ("sdxl_pipeline", {"height": "2048", "width": "1024"}, (True, False)),
    ("flux_pipeline", {"height": "1536", "width": "2048"}, (True, True)),
    ("wan_pipeline", {}, (True, True)),
    ("ltx_pipeline", {}, (False, True)),
]


@pytest.mark.parametrize(("name", "settings", "beyond"), TILED)
def test_a_picture_is_to_its_tiles_as_in_the_run(name, settings, beyond):
    """A side that one tile holds stays one tile, and a larger one is several that overlap as much."""
    whole = make_workload(name, settings)
    reduced = whole.small()
    for side, is_beyond in zip(("height", "width"), beyond, strict=True):
        share, ours = (getattr(each, side) / each.tile for each in (whole, reduced))
        assert (share > 1, ours > 1) == (is_beyond, is_beyond)
        assert ours == pytest.approx(min(share, 2.5), abs=0.5)
