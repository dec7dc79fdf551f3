"""Weights in 8 and 4 bits: accuracy of the codes, stated size, and training of adapters next to them."""

import copy
import sys
import types

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from optimizations.lora import Lora
from optimizations.weight_quantization import Quantized, WeightQuantization
from tests.optimizations.memory import predicted
from tests.optimizations.tiny import llama

both = pytest.mark.parametrize("bits", [8, 4])


@both
@pytest.mark.parametrize(("group", "inputs"), [(32, 64), (128, 96), (2, 8)])
def test_each_weight_is_within_half_a_step_of_its_groups_scale(bits, group, inputs):
    torch.manual_seed(0)
    layer = nn.Linear(inputs, 10)
    packed = Quantized(layer, bits, group)
    groups = layer.weight.detach().unflatten(1, (-1, min(group, inputs)))
    step = groups.abs().amax(-1, keepdim=True) / (127 if bits == 8 else 7)
    apart = (packed.unpacked().unflatten(1, (-1, min(group, inputs))) - groups).abs()
    assert (apart <= step / 2 * (1 + 1e-5)).all()
    assert apart.max() > 0.25 * step.max()


@both
def test_weights_that_codes_can_hold_come_back_to_the_bit_whatever_the_pieces(bits, monkeypatch):
    from optimizations import weight_quantization

    most = 127 if bits == 8 else 7
    layer = nn.Linear(64, 33, bias=False)
    layer.weight.data = torch.randint(-most, most + 1, (33, 64)) * 0.25
    layer.weight.data[:, ::32] = most * 0.25
    whole = Quantized(layer, bits, 32)
    assert torch.equal(whole.unpacked(), layer.weight)
    monkeypatch.setattr(weight_quantization, "_PIECE", 640)
    assert torch.equal(Quantized(layer, bits, 32).codes, whole.codes)


@both
def test_it_computes_with_these_weights_and_hands_gradients_on(bits):
    layer, x = nn.Linear(32, 8), torch.randn(5, 32, requires_grad=True)
    packed = Quantized(layer, bits, 16)
    expected = F.linear(x, packed.unpacked(), layer.bias)
    output = packed(x)
    torch.testing.assert_close(output, expected)
    output.square().sum().backward()
    gradient, x.grad = x.grad, None
    expected.square().sum().backward()
    torch.testing.assert_close(gradient, x.grad)


def test_without_what_was_kept_undo_gives_what_the_codes_stand_for():
    case = llama()
    WeightQuantization(bits=4, keep=False).apply(case.model.requires_grad_(False))()
    layer = case.model.model.layers[0].mlp.up_proj
    again = copy.deepcopy(layer)
    assert torch.equal(Quantized(again, 4, 128).unpacked(), layer.weight)
    assert layer.weight.unique().numel() <= 15 * 64


def test_the_rest_of_the_model_stays_as_it_is():
    case = llama()
    WeightQuantization(only="mlp").apply(case.model)
    names = [name for name, each in case.model.named_modules() if isinstance(each, Quantized)]
    assert names == [f"model.layers.{n}.mlp.{which}_proj" for n in range(4) for which in ("gate", "up", "down")]


@both
def test_adapters_beside_them_learn_and_no_matrix_is_kept_for_backward(bits):
    case = llama()
    Lora(rank=4).apply(case.model)
    WeightQuantization(bits=bits, group=16).apply(case.model)
    optimizer = torch.optim.AdamW(
        [parameter for parameter in case.model.parameters() if parameter.requires_grad], lr=0.01
    )
    kept: list[torch.Size] = []
    losses = []
    for _ in range(4):
        with torch.autograd.graph.saved_tensors_hooks(lambda each: kept.append(each.shape) or each, lambda each: each):
            loss = case.loss(case.model)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
    # Those of queries and outputs, and of keys and values; the head's is (32, 64) as a feed-forward's would be.
    assert {(32, 32), (32, 16)}.isdisjoint(map(tuple, kept))


@pytest.mark.slow
def test_a_predicted_model_takes_as_many_bytes_as_its_codes_and_scales():
    settings = {"double_layers": "2", "single_layers": "4"}
    peaks = {}
    for bits in (None, "8", "4", "float8"):
        knobs = {"codes": bits} if bits == "float8" else {"bits": bits}
        chosen = () if bits is None else (("weight_quantization", knobs),)
        peaks[bits] = predicted("flux", settings, *chosen).run
    weights = peaks[None].weights_bytes
    saved = {bits: peaks[None].peak_allocated_bytes - run.peak_allocated_bytes for bits, run in peaks.items() if bits}
    # Of two bytes a weight one and a 64th are left, or a half and a 64th; the largest matrix is unpacked for a while.
    assert 0.40 * weights < saved["8"] < 0.49 * weights
    assert 0.62 * weights < saved["4"] < 0.74 * weights
    for bits, bytes_saved in saved.items():
        # The weights as they are now: but for the matrix that is unpacked, what the peak has lost is what they have.
        assert peaks[bits].weights_bytes == pytest.approx(weights - bytes_saved, rel=0.25)
        assert peaks[bits].parameters == peaks[None].parameters
    # A scale for each output is next to nothing.
    assert saved["8"] < saved["float8"] < 0.5 * weights


def test_float8_is_the_nearest_there_is_by_output_and_half_as_wide_as_bf16():
    torch.manual_seed(0)
    layer = nn.Linear(48, 20)
    layer.weight.data[3] *= 1000
    layer.weight.data[4] = 0
    weight = layer.weight.detach().clone()
    WeightQuantization(codes="float8").apply(model := nn.Sequential(layer))
    packed = model[0]
    assert (packed.kind, packed.codes.dtype, packed.codes.shape) == (torch.float8_e4m3fn, torch.uint8, (20, 48))
    assert packed.scales.shape == (20, 1)
    assert torch.equal(packed.unpacked()[4], weight[4])
    # Three bits after the point: half a step is a sixteenth, and what is tiny has the smallest step there is.
    scales = weight.abs().amax(1, keepdim=True) / 448
    assert bool(((packed.unpacked() - weight).abs() <= (weight.abs() / 16).clamp(min=scales * 2**-10) * 1.001).all())
    x = torch.randn(2, 48, requires_grad=True)
    torch.testing.assert_close(packed(x), nn.functional.linear(x, packed.unpacked(), packed.bias))
    packed(x).sum().backward()
    torch.testing.assert_close(x.grad, packed.unpacked().sum(0).expand(2, 48))


@pytest.mark.parametrize("leaves", [True, False])
def test_what_a_library_refuses_or_leaves_out_leaves_the_model_as_it_was(monkeypatch, leaves):
    """A library of the same form that does nothing, or breaks off half-way."""

    def quantize(model, config, filter_fn):
        for module in model.modules():
            if filter_fn(module, "") and not leaves:
                module.weight.data = torch.zeros(1)
                raise RuntimeError("no kernels here")

    words = {"Int8WeightOnlyConfig": lambda: None, "Int4WeightOnlyConfig": lambda group_size: None}
    monkeypatch.setitem(
        sys.modules,
        "torchao.quantization",
        types.SimpleNamespace(**words, quantize_=quantize),  # type: ignore[arg-type]
    )
    case = llama()
    before = {name: parameter.clone() for name, parameter in case.model.named_parameters()}
    reason = "it skipped some" if leaves else "no kernels here"
    with pytest.raises(ValueError, match=rf"torchao cannot quantize this to 4 bits here \({reason}.*Use by=torch"):
        WeightQuantization(bits=4, by="torchao").apply(case.model)
    assert all(torch.equal(parameter, before[name]) for name, parameter in case.model.named_parameters())


@pytest.mark.parametrize("has_bias", [True, False])
def test_under_autocast_outputs_and_gradients_have_the_dtypes_of_a_linear_layer(has_bias):
    torch.manual_seed(0)
    plain = nn.Linear(32, 8, bias=has_bias)
    packed = Quantized(plain, 8, 16)
    plain.weight.data = packed.unpacked()
    results = []
    for layer in (plain, packed):
        x = torch.linspace(-1, 1, 5 * 32).view(5, 32).requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = layer(x)
        output.float().square().sum().backward()
        results.append((output.dtype, x.grad.dtype, output.detach().float(), x.grad))
    (dtype, grad_dtype, *expected), (our_dtype, our_grad_dtype, *ours) = results
    assert (our_dtype, our_grad_dtype) == (dtype, grad_dtype) == (torch.bfloat16, torch.float32)
    for one, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("knobs", [{"bits": 8}, {"bits": 4}, {"codes": "float8"}], ids=str)
def test_a_quantized_model_can_be_cast_to_another_dtype_and_stays_as_small(knobs):
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(64, 32), nn.Linear(32, 16)), torch.randn(4, 64)
    WeightQuantization(group=16, keep=False, **knobs).apply(model)
    expected = model(x)
    before = {name: buffer.nbytes for name, buffer in model.named_buffers() if name.endswith("codes")}
    model.to(torch.bfloat16)
    assert {name: each.nbytes for name, each in model.named_buffers() if name.endswith("codes")} == before
    output = model(x.bfloat16())
    assert output.dtype is torch.bfloat16
    torch.testing.assert_close(output.float(), expected, rtol=0.05, atol=0.02)


@pytest.mark.parametrize("blocks", [1, 2])
def test_an_embedding_that_shares_its_weight_with_a_head_keeps_it(blocks):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(20, 16)
            self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(16, 16)) for _ in range(blocks))
            self.head = nn.Linear(16, 20, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, ids):
            x = self.embedding(ids)
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    torch.manual_seed(0)
    model, ids = Tied(), torch.arange(20)
    expected = model(ids)
    undo = WeightQuantization(group=16).apply(model)
    torch.testing.assert_close(model(ids), expected, rtol=0.05, atol=0.05)
    assert [name for name, module in model.named_modules() if isinstance(module, Quantized)] == [
        f"blocks.{number}.0" for number in range(blocks)
    ]
    undo()
    assert torch.equal(model(ids), expected) and model.head.weight is model.embedding.weight
