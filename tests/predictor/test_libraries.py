"""Libraries that people use, on a card that is not there: their own classes, from small configurations."""

from pathlib import Path
from typing import Any

import pytest
import torch

from memviz.predictor.device import PredictedDevice
from tests.predictor.rows import A100
from tests.second_process import memviz, predict

MiB = 1 << 20
SMALL = {
    "vocab_size": 1000,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def llama() -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL))


@pytest.mark.slow
def test_text_that_nobody_computes_is_generated_without_a_mask(device: PredictedDevice) -> None:
    model = llama().to("cuda").eval()
    tokens = torch.randint(0, 1000, (2, 200), device="cuda")
    assert model.generate(tokens, max_new_tokens=4, pad_token_id=0).shape == (2, 204)
    assert any("mask nothing" in sentence for sentence in device.unseen())


GENERATED = {
    "greedy": {},
    "sampled": {"do_sample": True},
    "beams": {"num_beams": 3},
    "beams that stop early": {"num_beams": 3, "early_stopping": True},
    "sampled beams": {"num_beams": 3, "do_sample": True},
}


@pytest.mark.slow
@pytest.mark.parametrize("way", GENERATED)
def test_an_answer_to_a_text_goes_on_to_its_greatest_length(way: str, device: PredictedDevice) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 4, "vocab_size": 100}
    with torch.no_grad():
        config = transformers.T5Config(**sizes, decoder_start_token_id=0)
        model = transformers.T5ForConditionalGeneration(config).to("cuda").eval()
        tokens = torch.randint(2, 100, (2, 8), device="cuda")
        assert model.generate(tokens, max_new_tokens=5, **GENERATED[way]).shape == (2, 1 + 5)
        assert any("length" in sentence for sentence in device.unseen())


@pytest.mark.slow
@pytest.mark.parametrize("draws", [False, True])
def test_what_an_assistant_drafts_is_accepted_whole(draws: bool, device: PredictedDevice) -> None:
    with torch.no_grad():
        model, assistant = llama().to("cuda").eval(), llama().to("cuda").eval()
        calls: list[int] = []
        model.register_forward_hook(lambda *_: calls.append(1))
        tokens = torch.randint(3, 1000, (1, 8), device="cuda")
        out = model.generate(tokens, assistant_model=assistant, max_new_tokens=12, pad_token_id=0, do_sample=draws)
        assert out.shape == (1, 8 + 12)
        assert len(calls) <= 6
        assert any("all draft tokens accepted" in sentence for sentence in device.unseen())


def test_weights_that_lie_on_meta_are_themselves_when_they_are_put_there_again(device: PredictedDevice) -> None:
    """Hooks of accelerate do this, and rebuild a parameter of the class that they find."""
    weight = torch.nn.Parameter(torch.rand(4, 4).to("meta"))
    before = device.allocated_bytes
    assert weight.to("meta") is weight and device.allocated_bytes == before
    halves = torch.rand(4, 4, device="cuda").to("meta", torch.bfloat16)
    assert halves.dtype is torch.bfloat16 and halves.is_meta
    with torch.device("meta"):
        # transformers asks so whether it builds on `meta`, and then sets the buffers after loading.
        made = torch.tensor([]), torch.tensor([1.0]), torch.as_tensor(2.0), torch.empty(0)
        assert {tensor.device.type for tensor in made} == {torch.get_default_device().type} == {"meta"}


@pytest.mark.slow
def test_a_model_that_was_trained_here_is_loaded_again(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    with PredictedDevice(A100) as device:
        model = llama().to("cuda")
        tokens = torch.randint(0, 1000, (2, 8), device="cuda")
        model(input_ids=tokens, labels=tokens).loss.backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        model.save_pretrained(tmp_path)
        again = transformers.LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
        before = device.allocated_bytes
        again.to("cuda")
        weights = sum(parameter.numel() for parameter in again.parameters()) * 2
        assert weights <= device.allocated_bytes - before < weights + 16_384
        assert str(again.lm_head.weight).startswith(("Parameter", "tensor(values unknown"))
    assert not list(tmp_path.glob("*.safetensors"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_a_pipeline_of_weights_in_eight_bits_runs_to_its_images(device: PredictedDevice) -> None:
    diffusers = pytest.importorskip("diffusers")
    model = diffusers.UNet2DModel(
        sample_size=32,
        block_out_channels=(32, 64),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )
    pipeline = diffusers.DDPMPipeline(model, diffusers.DPMSolverMultistepScheduler(use_karras_sigmas=True))
    pipeline.set_progress_bar_config(disable=True)
    model.enable_layerwise_casting(storage_dtype=torch.float8_e4m3fn, compute_dtype=torch.float32)
    pipeline.to("cuda")
    weights = sum(parameter.numel() for parameter in model.parameters())
    assert device.allocated_bytes < 2 * weights
    images = pipeline(batch_size=2, num_inference_steps=2, output_type="np").images
    assert images.shape == (2, 32, 32, 3)


def test_what_is_emptied_again_and_again_still_lets_go_of_cycles(device: PredictedDevice) -> None:
    for _ in range(3):
        kept: list[Any] = [torch.empty(MiB, device="cuda")]
        kept.append(kept)
        del kept
        device.empty_cache()
        assert device.reserved_bytes == 0


@pytest.mark.parametrize("target", ["cuda", 0, torch.device("cuda:0")])
def test_a_weight_packs_itself_on_its_way_to_the_card(target: Any, device: PredictedDevice) -> None:
    """Weights of bitsandbytes ask torch for the target device, and pack themselves unless that is `meta`."""

    class Packed(torch.nn.Parameter):
        def to(self, *args: Any, **kwargs: Any) -> Any:
            device, *_ = torch._C._nn._parse_to(*args, **kwargs)
            if device is not None and device.type == "cuda" and self.dtype != torch.uint8:
                self.data = self.data.to(device)[:, :4].to(torch.uint8)
                return self
            return torch.Tensor._make_subclass(Packed, super().to(*args, **kwargs), False)

    layer = torch.nn.Linear(8, 1024, bias=False)
    layer.weight = Packed(layer.weight.detach(), requires_grad=False)
    weight = layer.weight
    weight.to(target)
    layer.to("cuda")
    assert layer.weight is weight and weight.shape == (1024, 4)
    assert torch.cuda.memory_allocated() == 1024 * 4


def test_what_a_library_compiles_for_the_host_is_not_said_of_the_card() -> None:
    """bitsandbytes compiles its operators for the host, which compute the values that are known."""
    with torch.library._scoped_library("probe", "DEF") as library, PredictedDevice(A100) as device:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", torch.compile(lambda x: x * 2), "CompositeExplicitAutograd")
        assert torch.ops.probe.twice(torch.arange(4, device="cuda"))[1].item() == 2
        assert not any("torch.compile" in note for note in device.unseen())


PACKED_PRODUCT = (
    "(Tensor A, Tensor B, int[] shapeB, Tensor absmax, int blocksize, str quant_type, Tensor? bias=None, "
    "Tensor? absmax_8bit=None, Tensor? absmax_code=None, Tensor? absmax_offset=None) -> Tensor"
)


@pytest.mark.skipif(hasattr(torch.ops.bitsandbytes, "gemm_4bit"), reason="bitsandbytes itself is imported")
@pytest.mark.parametrize(("is_nested", "beside"), [(False, 0), (True, 2 * 64 * 1024)])
def test_bitsandbytes_unpacks_a_whole_weight_for_many_rows(is_nested: bool, beside: int) -> None:
    rows, outer, inner, block = 4096, 1024, 1024, 64
    blocks = outer * inner // block
    with torch.library._scoped_library("bitsandbytes", "FRAGMENT") as library:
        library.define(f"gemm_4bit{PACKED_PRODUCT}")
        library.impl("gemm_4bit", lambda a, b, shape, *rest, **more: a.new_empty(*a.shape[:-1], shape[0]), "Meta")
        with PredictedDevice(A100):
            # Before any is freed, so that nothing lies in a block that is too large for it.
            torch.mm(torch.empty(16, 16, device="cuda"), torch.empty(16, 16, device="cuda"))
            inputs = torch.empty(rows, inner, device="cuda", dtype=torch.bfloat16)
            weight = torch.empty(outer * inner // 2, 1, device="cuda", dtype=torch.uint8)
            scales = torch.empty(blocks, device="cuda")
            nested: dict[str, Any] = {}
            if is_nested:
                codes = torch.empty(blocks, device="cuda", dtype=torch.uint8)
                nested = {"absmax_8bit": codes, "absmax_code": scales[:256], "absmax_offset": scales[0]}
            before = torch.cuda.memory_allocated()
            out = torch.ops.bitsandbytes.gemm_4bit(inputs, weight, [outer, inner], scales, block, "nf4", **nested)
            unpacked = outer * inner * 2
            assert torch.cuda.max_memory_allocated() - before == out.nbytes + unpacked + beside
            assert torch.cuda.memory_allocated() - before == out.nbytes


def stand_in(folder: Path, files: dict[str, str]) -> None:
    """Write the modules of a library of which the predictor knows names alone."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        for parent in path.relative_to(folder).parents[:-1]:
            (folder / parent / "__init__.py").touch()
        path.write_text(text)


PAGED = {
    "bitsandbytes/functional.py": (
        "import os\ndef get_paged(*shape, dtype): os._exit(1)\ndef prefetch_tensor(tensor): os._exit(1)\n"
    ),
    "program.py": (
        "import torch\nimport bitsandbytes.functional as F\n"
        "state = F.get_paged(1000, dtype=torch.uint8)\nF.prefetch_tensor(state)\n"
        "torch.empty(1 << 20, device='cuda')\nprint('ended', state.is_paged, state.device)\n"
    ),
}
UNREGISTERED = {
    "bitsandbytes/cextension.py": (
        "class Library:\n    compiled_with_cuda = False\n    def cquantize_cpu(self): return 'on the host'\n"
        "lib = Library()\n"
    ),
    "bitsandbytes/functional.py": (
        "import torch\nfrom .cextension import lib\n"
        "KERNELS = (lib.cquantize_fp16,) if lib.compiled_with_cuda else ()\n"
        "def quantize(x):\n    out = torch.empty(x.numel() // 2, dtype=torch.uint8, device=x.device)\n"
        "    assert KERNELS[0](x.data_ptr(), out.data_ptr()) == 0\n    return out\n"
    ),
    "program.py": (
        "import torch\nimport bitsandbytes.functional as F\n"
        "packed = F.quantize(torch.empty(1 << 20, device='cuda'))\n"
        "print('ended', torch.cuda.memory_allocated() == packed.nbytes, F.lib.cquantize_cpu())\n"
    ),
}
DRIVER = {
    "triton/backends/nvidia/driver.py": (
        "class Driver:\n    def __init__(self):\n        import torch\n"
        "        self.get_current_device = torch.cuda.current_device\n"
        "class CudaDriver(Driver):\n    def __init__(self):\n        raise OSError('libcuda.so')\n"
    ),
    "triton/runtime/driver.py": (
        "class Config:\n    _active = None\n    @property\n    def active(self):\n"
        "        from triton.backends.nvidia.driver import CudaDriver\n"
        "        return self._active or CudaDriver()\ndriver = Config()\n"
    ),
    "program.py": (
        "import triton.runtime.driver as runtime\ndriver = runtime.driver.active\n"
        "many = driver.utils.get_device_properties(0)['multiprocessor_count']\n"
        "print('ended', driver.get_current_device(), many)\n"
    ),
}
ZERO = {
    "deepspeed/ops/op_builder/builder.py": (
        "import os\nclass OpBuilder:\n    def __init__(self, name): self.name = name\n"
        "    def load(self, verbose=True): os._exit(1)\n"
    ),
    "deepspeed/runtime/zero/stage3.py": (
        "class DeepSpeedZeroOptimizer_Stage3:\n    def __init__(self, optimizer): self.optimizer = optimizer\n"
        "    def step(self):\n        for _ in range(3): self.optimizer.step()\n"
    ),
    "program.py": (
        "import torch\nfrom deepspeed.ops.op_builder.builder import OpBuilder\n"
        "from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3\n"
        "weight = torch.nn.Parameter(torch.ones(8, device='cuda'))\n"
        "OpBuilder('fused_adam').load().multi_tensor_adam(2048, weight, [[weight]])\n"
        "sharded = DeepSpeedZeroOptimizer_Stage3(torch.optim.SGD([weight]))\n"
        "for _ in range(2): sharded.step()\n"
        "try: OpBuilder('transformer').load()\nexcept Exception as error: print('ended', error)\n"
    ),
}


@pytest.mark.parametrize(
    ("files", "said", "noted"),
    [
        (PAGED, "ended True cpu", "are not counted"),
        (UNREGISTERED, "ended True on the host", ""),
        (DRIVER, "ended 0 58", ""),
        (ZERO, "DeepSpeed's extension transformer cannot be predicted", ", 2 steps:"),
    ],
)
def test_libraries_that_ask_the_card_by_their_own_code_are_answered(
    files: dict[str, str], said: str, noted: str, tmp_path: Path
) -> None:
    stand_in(tmp_path, files)
    ran = predict("--card", "L4", tmp_path / "program.py", folder=tmp_path)
    assert said in ran.stdout
    assert noted in ran.stderr
    assert ran.returncode == 0, ran.stderr


def test_what_only_switches_the_compiler_off_does_not_load_it(tmp_path: Path) -> None:
    """It takes as long as a short program, which needs no more of it than to be told that nothing is compiled."""
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, torch\n"
        "model = torch.nn.Linear(4, 4).cuda()\n"
        "optimizer = torch.optim.AdamW(model.parameters())\n"
        "model(torch.ones(2, 4, device='cuda') * 2).sum().backward()\n"
        "optimizer.step()\n"
        "loaded = 'torch._dynamo.eval_frame' in sys.modules\n"
        "from torch._dynamo.utils import counters\n"
        "model(torch.ones(2, 4, device='cuda'))\n"
        "print(loaded, type(torch._dynamo).__name__, torch._dynamo.config.verbose)\n"
    )
    ran = memviz("predict", script, folder=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[0] == "False module False"
