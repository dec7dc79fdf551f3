"""Code under torch.compile: torch's own compiler plans the buffers, and none of its kernels runs."""

import gc
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention.flex_attention import flex_attention
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import memviz
from memviz.predictor.compiled import Compiles
from memviz.predictor.device import PredictedDevice
from tests.predictor.rows import A100

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
MIB = 1 << 20


def chain(x: Tensor) -> Tensor:
    return (torch.sin(x) * 2 + torch.cos(x)).relu()


def predicted(program: Callable[[], Any], compile: Compiles = True) -> tuple[int, str, Any]:
    """Return the highest live bytes, what the prediction rests on, and what the program returns."""
    with memviz.predicting("A100 80GB", compile=compile) as done:
        found = program()
    assert done.estimate is not None
    return done.estimate.peak_requested, " ".join(done.estimate.notes), found


def peak_of(program: Callable[[], Any], compile: Compiles = True) -> int:
    """Return the highest live bytes, and see that nothing ran uncompiled."""
    peak, notes, _ = predicted(program, compile)
    assert "uncompiled" not in notes
    return peak


def live_in(program: Callable[[], list[int]], compile: Compiles = True) -> list[int]:
    """Return the live bytes that the program noted, and see that nothing ran uncompiled."""
    _, notes, live = predicted(program, compile)
    assert "uncompiled" not in notes
    return live


@pytest.mark.parametrize(("backend", "kind"), [("inductor", True), ("inductor", "ideal"), ("aot_eager", "ideal")])
def test_fused_operators_have_no_buffers_between_them(backend: str, kind: Compiles) -> None:
    def program() -> None:
        torch.compile(chain, backend=backend)(torch.empty(4 * MIB, device="cuda"))

    assert predicted(program, compile=False)[0] == 4 * 16 * MIB
    peak, notes, _ = predicted(program, compile=kind)
    assert peak == 2 * 16 * MIB
    assert "torch.compile" in notes


def test_views_among_the_results_of_ideal_fusion_share_memory() -> None:
    def program() -> None:
        def run(x: Tensor) -> tuple[Tensor, ...]:
            made = (x.sin() @ x).cos()
            return x[1:], made, made[1:].T

        x = torch.empty(1024, 1024, device="cuda")
        part, made, turned = torch.compile(run)(x)
        assert part.data_ptr() - x.data_ptr() == turned.data_ptr() - made.data_ptr() == 4096
        assert turned.shape == (1024, 1023) and turned.stride() == (1, 1024)

    # A product has a workspace, which needs no memory here.
    assert peak_of(program, compile="ideal") == 2 * 4 * MIB


def test_options_reach_the_compiler_and_properties_of_the_card_are_constants_of_a_graph() -> None:
    def run(x: Tensor) -> Tensor:
        return (x * torch.cuda.get_device_properties("cuda").multi_processor_count).sum(0)

    def program(**options: Any) -> None:
        torch.compile(run, fullgraph=True, options=options)(torch.ones(1 << 20, 2, device="cuda"))

    # A sum is split over blocks, whose sums have a buffer.
    assert peak_of(partial(program, **{"split-reductions": False, "max_autotune": True})) < peak_of(program)


@pytest.mark.parametrize("trains", [True, False])
def test_a_layer_with_a_fused_kernel_for_inference_is_one_graph(trains: bool) -> None:
    def program() -> None:
        layer = nn.TransformerEncoderLayer(64, 4, batch_first=True, device="cuda").train(trains)
        with torch.set_grad_enabled(trains):
            out = torch.compile(layer, fullgraph=True)(torch.ones(2, 8, 64, device="cuda"))
        if trains:
            out.sum().backward()

    _, notes, _ = predicted(program)
    assert "graphs and buffers planned by the compiler" in notes and "uncompiled" not in notes


@pytest.mark.parametrize("compiles", [False, True])
def test_a_compiled_module_has_its_original_and_dies_with_it(compiles: bool) -> None:
    with PredictedDevice(A100, compiles=compiles) as device:
        layer = torch.compile(nn.Linear(256, 256)).cuda()
        original = layer._orig_mod
        assert original.weight is layer.weight and not hasattr(original, "_orig_mod")
        assert original.state_dict().keys() == layer.state_dict().keys() == {"weight", "bias"}
        layer(torch.empty(16, 256, device="cuda"))
        torch._C._cuda_clearCublasWorkspaces()
        assert device.allocated_bytes == 256 * 256 * 4 + 256 * 4
        del layer, original
        gc.collect()
        assert device.allocated_bytes == 0


def test_settings_that_need_a_card_to_compile_are_not_followed() -> None:
    def program() -> None:
        layer = torch.compile(nn.Linear(256, 256).cuda())
        layer(torch.ones(256, 256, device="cuda")).sum().backward()

    before = peak_of(program)
    timed = {"triton.cudagraphs": True, "max_autotune": True, "coordinate_descent_tuning": True}
    with torch._inductor.config.patch(timed), torch._dynamo.config.patch(compiled_autograd=True):
        assert peak_of(program) == before


def test_tensors_are_made_of_tensors_after_something_was_compiled() -> None:
    """A Python function as `Tensor.__getitem__`, even for a moment, makes CPython take numbers for sequences."""
    peak_of(lambda: torch.compile(lambda x: x[:2, None].sin())(torch.ones(4, 4, device="cuda")))
    assert torch.tensor([torch.ones(()), 2.0]).tolist() == [1.0, 2.0]


def test_code_that_asks_for_autocast_is_one_graph() -> None:
    def program() -> None:
        run = torch.compile(lambda x: chain(x.half() if torch.is_autocast_enabled() else x), fullgraph=True)
        run(torch.randn(1 << 20, device="cuda"))

    assert peak_of(program) == 2 * (1 << 20) * 4


@pytest.mark.parametrize("kind", [True, "ideal"])
def test_backward_keeps_the_input_alone_and_computes_the_rest_again(kind: Compiles) -> None:
    def program() -> list[int]:
        x = torch.empty(4 * MIB, device="cuda", requires_grad=True)
        out = torch.compile(chain)(x)
        live = [torch.cuda.memory_allocated()]
        out.backward(torch.ones_like(out))
        return [*live, torch.cuda.memory_allocated()]

    # The input, the output, and a byte for each element, by which relu's gradient is zero; then the gradient.
    assert live_in(program, compile=kind) == [(16 + 16 + 4) * MIB, 3 * 16 * MIB]


def test_a_module_trains_with_its_own_weights_and_each_allocation_has_one_label() -> None:
    def program() -> None:
        layers = nn.Linear(256, 1024), nn.GELU(), nn.Dropout(0.1), nn.Linear(1024, 256)
        model = torch.compile(nn.Sequential(*layers).cuda())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            model(torch.randn(512, 256, device="cuda")).sum().backward()
            optimizer.step()
        weights = sum(weight.numel() for weight in model.parameters()) * 4
        assert torch.cuda.memory_allocated() >= 2 * weights
        device = PredictedDevice.in_use
        assert device is not None
        assert len(device.recorder.columns.rule) == device.recorder.ledger.count

    peak_of(program)


@pytest.mark.parametrize("dynamic", [False, None, True])
def test_other_shapes_have_their_own_graph_or_one_for_all(dynamic: bool | None) -> None:
    def program() -> None:
        compiled = torch.compile(chain, dynamic=dynamic)
        for size in (1, 2, 3, 5):
            compiled(torch.empty(size * MIB, device="cuda"))
            assert torch.cuda.max_memory_allocated() == 2 * 4 * size * MIB

    peak_of(program)


@pytest.mark.parametrize("is_marked", [False, True])
def test_a_dimension_marked_as_dynamic_has_one_graph_for_all_sizes(is_marked: bool) -> None:
    def program() -> None:
        for size in (2, 3, 5):
            x = torch.empty(size * MIB, device="cuda")
            if is_marked:
                torch._dynamo.mark_dynamic(x, 0)
            # Calls of `torch.compile` share what they compile.
            torch.compile(chain)(x)
            assert not is_marked or torch.cuda.max_memory_allocated() == 2 * 4 * size * MIB

    with torch._dynamo.config.patch(recompile_limit=1):
        assert ("uncompiled" in predicted(program)[1]) != is_marked


def test_a_product_of_odd_width_is_not_timed_with_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    # It is not padded without Triton.
    monkeypatch.setattr("torch._inductor.fx_passes.pad_mm.has_triton", lambda: True)

    def program() -> None:
        left, right = (
            torch.empty(*shape, dtype=torch.bfloat16, device="cuda") for shape in ((8192, 4096), (4096, 4095))
        )
        before = torch.cuda.memory_allocated()
        out = torch.compile(torch.matmul)(left, right)
        assert torch.cuda.max_memory_allocated() - before - out.nbytes <= 32 * MIB  # cuBLAS's workspace

    peak_of(program)


def test_parts_that_are_written_in_place_have_gradients() -> None:
    def shifted(x: Tensor) -> Tensor:
        parts = (x @ x.T[:, :1024]).view(1, -1, 16, 64)
        parts[:, 1:, :, 32:] = parts[:, :-1, :, 32:]
        parts -= x.view_as(parts) * 2
        return parts.view_as(x)

    assert saved_by(shifted) >= 16 * MIB


def test_what_the_code_makes_on_the_card_is_fused_too() -> None:
    def positions(x: Tensor) -> Tensor:
        steps = torch.arange(x.shape[0], device="cuda").to("cuda")
        return x * steps + torch.zeros(x.shape, device=x.device).cuda()

    def program() -> None:
        torch.compile(positions)(torch.empty(4 * MIB, device="cuda"))

    assert peak_of(program) == 2 * 16 * MIB


def test_flex_attention_inside_compiled_code_keeps_no_scores() -> None:
    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        out: Tensor = flex_attention(query, key, value)  # type: ignore[assignment]
        return out * 2

    def program() -> list[int]:
        inputs = [torch.empty(1, 8, 4096, 64, device="cuda", requires_grad=True) for _ in range(3)]
        out = torch.compile(attend)(*inputs)
        live = [torch.cuda.memory_allocated()]
        out.sum().backward()
        return [*live, torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()]

    live = live_in(program)
    # Three inputs, the output, twice the output and a number for each query; the mask of one block is less than 4 KiB.
    assert 0 <= live[0] - 5 * 8 * MIB - 128 * 1024 <= 4096
    # Then the inputs, their gradients, and the result, which the program holds.
    assert 0 <= live[1] - 7 * 8 * MIB <= 4096
    assert live[2] < 8 * 4096 * 4096


def test_what_a_call_keeps_on_its_module_stays_there() -> None:
    class Positions(nn.Module):
        cached: Tensor | None = None

        def forward(self, x: Tensor) -> Tensor:
            if self.cached is None or len(self.cached) != len(x):
                self.cached = torch.arange(len(x), device=x.device)
            return x * self.cached

    def program() -> None:
        model = torch.compile(Positions().cuda())
        for count in (MIB, 2 * MIB, 2 * MIB):
            model(torch.empty(count, device="cuda"))

    # Input and result, the new positions of 8 bytes, and the old ones until they are replaced.
    assert peak_of(program) == (2 * 8 + 16 + 8) * MIB


def shown_twice(x: Tensor) -> Tensor:
    first = chain(x)
    print("here")  # noqa: T201
    return chain(first)


def as_its_sum_says(x: Tensor) -> Tensor:
    first = chain(x)
    return chain(first) if first.sum().item() != 7 else first


@pytest.mark.parametrize("broken", [shown_twice, as_its_sum_says])
def test_each_part_of_a_broken_graph_is_compiled(broken: Callable[[Tensor], Tensor]) -> None:
    def program() -> int:
        x = torch.ones(4 * MIB, device="cuda", requires_grad=True)
        out = torch.compile(broken)(x)
        live = torch.cuda.memory_allocated()
        out.backward(torch.ones_like(out))
        torch._dynamo.reset()
        with pytest.raises(torch._dynamo.exc.TorchDynamoException):
            torch.compile(broken, fullgraph=True)(x)
        return live

    _, notes, live = predicted(program)
    assert "breaks its graph at test_compiled.py:" in notes
    # Input and result, what is handed from part to part, and a byte for each element of the two results of relu.
    assert live // MIB == 3 * 16 + 2 * 4


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "cudagraphs", lambda graph, _: graph.forward])
def test_other_backends_run_their_graphs_operator_by_operator(backend: Any) -> None:
    def made_on_the_card(x: Tensor) -> Tensor:
        return chain(x) + torch.zeros(len(x), device="cuda")

    def program() -> None:
        torch.compile(made_on_the_card, backend=backend)(torch.ones(MIB, device="cuda"))

    peak, notes, _ = predicted(program)
    assert peak == peak_of(lambda: made_on_the_card(torch.ones(MIB, device="cuda")))
    assert (f'"{backend}"' in notes) == (backend in ("aot_eager", "cudagraphs"))


def saved_by(run: Callable[[Tensor], Tensor]) -> int:
    """Return the bytes that a compiled call keeps for its backward beside its result."""

    def program() -> list[int]:
        x = torch.ones(4096, 1024, device="cuda", requires_grad=True)
        x @ x.T  # cuBLAS's workspace
        before = torch.cuda.memory_allocated()
        out = torch.compile(run)(x)
        after = torch.cuda.memory_allocated()
        out.sum().backward()
        return [after - before]

    return live_in(program)[0]


def test_a_loss_keeps_its_logits_and_the_backward_writes_into_them() -> None:
    def loss(hidden: Tensor, head: Tensor, targets: Tensor) -> Tensor:
        logits = functional.linear(functional.rms_norm(hidden, (256,)), head)
        return functional.cross_entropy((30 * torch.tanh(logits / 30)).float(), targets)

    def program() -> list[int]:
        like = {"dtype": torch.bfloat16, "device": "cuda", "requires_grad": True}
        hidden, head = torch.ones(512, 256, **like), torch.ones(32768, 256, **like)
        targets = torch.zeros(512, dtype=torch.int64, device="cuda")
        hidden @ hidden.T
        before = torch.cuda.memory_allocated()
        out = torch.compile(loss)(hidden, head, targets)
        after = torch.cuda.memory_allocated()
        out.backward()
        return [before, after, torch.cuda.max_memory_allocated()]

    before, after, peak = live_in(program)
    # The logits in bf16, and half a MiB for what the product was computed of; those in fp32 are never in memory.
    assert 32 * MIB <= after - before <= 33 * MIB
    # The head's gradient is as large as the head; the logits' gradient takes their place. Backward has a workspace.
    assert after + 16 * MIB <= peak <= after + 26 * MIB


def test_a_norm_is_computed_of_its_input() -> None:
    def normed(x: Tensor) -> Tensor:
        return functional.rms_norm(x @ x.T[:, :1024], (1024,))

    # The result, the product that the norm's gradient needs, and a number for each row.
    assert 32 * MIB <= saved_by(normed) <= 32 * MIB + 64 * 1024


def product(x: Tensor) -> Tensor:
    return torch.sin(x @ x.T[:, :1024])


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_keeps_its_input_alone_and_computes_again(reentrant: bool) -> None:
    def twice(x: Tensor) -> Tensor:
        first: Tensor = checkpoint(product, x, use_reentrant=reentrant)
        return torch.cos(first @ x[:1024])

    # Beside the result both products, and the sine of the first one, of which the second one is computed.
    assert saved_by(lambda x: torch.cos(product(x) @ x[:1024])) == 4 * 16 * MIB
    assert saved_by(twice) == 2 * 16 * MIB


@pytest.mark.parametrize("kind", [True, "ideal"])
def test_a_compiled_checkpoint_draws_its_random_numbers_again(kind: Compiles) -> None:
    def attend(x: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(x, x, x, is_causal=True)

    def program() -> None:
        x = torch.ones(2, 4, 256, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        torch.compile(lambda x: checkpoint(attend, x * 2, use_reentrant=False))(x).sum().backward()
        assert x.grad is not None

    peak_of(program, compile=kind)


def test_selective_checkpoints_keep_what_their_policy_says() -> None:
    def keeps_products(_: Any, operator: Any, *__: Any, **___: Any) -> CheckpointPolicy:
        is_product = operator is torch.ops.aten.mm.default
        return CheckpointPolicy.MUST_SAVE if is_product else CheckpointPolicy.PREFER_RECOMPUTE

    def selected(x: Tensor, policy: Any = keeps_products) -> Tensor:
        contexts = partial(create_selective_checkpoint_contexts, policy)
        out: Tensor = checkpoint(product, x, use_reentrant=False, context_fn=contexts)
        return out * 2

    assert saved_by(selected) == 2 * 16 * MIB
    assert saved_by(partial(selected, policy=lambda *_, **__: CheckpointPolicy.PREFER_RECOMPUTE)) == 16 * MIB


@pytest.mark.parametrize(("kind", "states"), [(torch.optim.AdamW, 2), (torch.optim.SGD, 0)])
def test_a_compiled_step_of_an_optimizer_takes_its_states_alone(kind: Any, states: int) -> None:
    def program() -> list[int]:
        added = []
        model = nn.Linear(2048, 2048, bias=False).cuda()
        optimizer = kind(model.parameters(), lr=0.1)
        step = torch.compile(optimizer.step)
        for _ in range(2):
            model(torch.randn(8, 2048, device="cuda")).sum().backward()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            step()
            added.append(torch.cuda.max_memory_allocated() - before)
            optimizer.zero_grad()
        return added

    added = live_in(program)
    assert 0 <= added[0] - states * 16 * MIB <= 512
    assert added[1] == 0


@torch.library.custom_op("memviz_tests::mm", mutates_args=())
def quantized(x: Tensor) -> Tensor:
    """An operator of another library, named as one of torch's, that makes a copy on the way."""

    @torch.compile
    def copied(x: Tensor) -> Tensor:
        return x.mul(x.new_tensor(0.5, dtype=torch.float32)).to(torch.float8_e4m3fn)

    return copied(x).t().contiguous().t().to(x.dtype)


@quantized.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@pytest.mark.parametrize("compile", [False, True])
def test_an_operator_written_in_python_takes_what_its_code_makes(compile: bool) -> None:
    def program() -> None:
        run = torch.compile(quantized) if compile else quantized
        for _ in range(2):
            run(torch.empty(1024, 4096, device="cuda"))

    # The input, its copy in a byte an element, and the result.
    assert peak_of(program) == (16 + 4 + 16) * MIB
