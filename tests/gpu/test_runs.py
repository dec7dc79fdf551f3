"""Runs and programs recorded on a real GPU: replayed under their own settings, predicted, and repeated under others.

The traces stay in pytest's base folder (`--basetemp OUT`); figures are printed (`-rP`).
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from memviz.allocator.replayer import Replayer
from memviz.allocator.settings import parse_settings
from memviz.analysis.timeline import timeline
from memviz.runner.execute import predict
from memviz.runner.jobs.worker_process import Worker, environment_of
from memviz.runner.plan import plan_of
from memviz.runner.request import Request
from memviz.trace.load import load_trace
from memviz.trace.model import Action, Trace
from tests.gpu.comparing import gpu_of, most_different, out_of_memory_at, sizes_of
from tests.gpu.conftest import Gpu, Python
from tests.gpu.programs import PROGRAMS, Program
from tests.replays import replay

_LTX = {"layers": "8"}
_FLUX = {"double_layers": "2", "single_layers": "4"}
_LLAMA = {"sequence": "2048"}
_SPLIT = ("split_feed_forward", {})
_FP8 = ("layerwise_casting", {})
_ALL = ("checkpointing", {})
_EXPANDABLE = ("allocator_settings", {"conf": "expandable_segments:True"})
_HUB = "transformers"
_GENERATE = {"mode": "inference", "cache": "true", "new_tokens": "64"}
_READ = {**_LLAMA, "mode": "inference"}
_LOSS, _LORA = ("chunked_cross_entropy", {}), ("lora", {})
_OFFLOAD = ("weight_offload", {})
_SECOND = ("checkpointing", {"every": "2"})


@dataclass(frozen=True)
class Run:
    name: str
    workload: str
    settings: Mapping[str, str] = field(default_factory=dict)
    optimizations: tuple[tuple[str, Mapping[str, str]], ...] = ()
    optimizer: str = "none"
    gib: float = 8
    """Memory of the card that it needs, about."""
    library: str = "diffusers"

    @property
    def request(self) -> Request:
        return Request(self.workload, self.settings, self.optimizations, optimizer=self.optimizer)  # type: ignore[arg-type]


def _flat(how: str) -> Run:
    optimizations = (("flat_gradients", {"how": how}),)
    return Run(f"block-{how.replace('_', '-')}", "transformer_block", {}, optimizations, gib=12, library="")


def _attention(kernel: str) -> tuple[str, Mapping[str, str]]:
    return "attention_backend", {"backend": kernel}


RUNS = (
    Run("feed-forward", "feed_forward", gib=7),
    Run("feed-forward-split", "feed_forward", {}, (_SPLIT,), gib=7),
    Run("ltx", "ltx_video", _LTX, gib=10),
    Run("ltx-checkpointed", "ltx_video", _LTX, (_ALL,), gib=10),
    Run("ltx-checkpointed-2nd", "ltx_video", _LTX, (_SECOND,), gib=10),
    _flat("plain"),
    _flat("list_then_cat"),
    _flat("flat"),
    Run("flux", "flux", _FLUX, gib=6),
    Run("flux-fp8", "flux", _FLUX, (_FP8,), gib=6),
    Run(
        "gpt2", "gpt2", optimizer="adamw", gib=13, library=_HUB
    ),
    Run(
        "gpt2-expandable", "gpt2", {}, (_EXPANDABLE,), "adamw", 13, library=_HUB,
    ),
    Run("block-math", "transformer_block", {}, (_attention("math"),), gib=7, library=""),
    Run("block-cudnn", "transformer_block", {}, (_attention("cudnn"),), gib=7, library=""),
    Run("ltx-math", "ltx_video", {"layers": "2"}, (_attention("math"),), gib=14),
    Run("ltx-efficient", "ltx_video", _LTX, (_attention("efficient"),), gib=10),
    Run("flux-flash", "flux", _FLUX, (_attention("flash"),), gib=6),
    Run("gpt2-fused", "gpt2", optimizer="adamw-fused", gib=13, library=_HUB),
    Run("gpt2-checkpointed", "gpt2", {}, (_ALL,), "adamw", 13, library=_HUB),
    Run("llama", "llama", _LLAMA, gib=15, library=_HUB),
    Run("llama-checkpointed", "llama", _LLAMA, (_ALL,), gib=15, library=_HUB),
    Run("llama-split", "llama", _LLAMA, (_SPLIT, _ALL), gib=15, library=_HUB),
    Run("cogvideox", "cogvideox", gib=7),
    Run("cogvideox-split", "cogvideox", {}, (_SPLIT,), gib=7),
    Run("cogvideox-fp8", "cogvideox", {}, (_FP8,), gib=7),
    Run("ltx-offload", "ltx_video", _LTX, (("checkpointing", {"offload": "true"}),), gib=10),
    Run("ltx-whole", "ltx_video", gib=25),
    Run("ltx-whole-checkpointed", "ltx_video", {}, (_ALL,), gib=25),
    Run("ltx-whole-checkpointed-2nd", "ltx_video", {}, (_SECOND,), gib=25),
    Run("flux-whole", "flux", gib=26),
    Run("flux-whole-fp8", "flux", {}, (_FP8,), gib=26),
    Run("flux-fp8-ahead", "flux", _FLUX, (("layerwise_casting", {"ahead": "true"}),), gib=6),
    Run("flux-offload-ahead", "flux", _FLUX, (("weight_offload", {"ahead": "true"}),), gib=6),
    Run("sdxl", "sdxl", gib=10),
    Run("sdxl-train", "sdxl", {"mode": "training", "height": "512", "width": "512"}, gib=24),
    Run("sdxl-train-checkpointed", "sdxl", {"mode": "training", "height": "512", "width": "512"}, (_ALL,), gib=20),
    Run("vae", "vae", gib=10),
    Run("vae-tiled", "vae", {}, (("vae_tiling", {}),), gib=6),
    Run("vae-train", "vae", {"part": "whole", "mode": "training", "height": "512", "width": "512"}, gib=20),
    Run("sdxl-pipeline", "sdxl_pipeline", gib=16),
    Run("sdxl-8-gb", "sdxl_pipeline", {"tile": "512"}, (_OFFLOAD, ("vae_tiling", {})), gib=8),
    Run("ltx-pipeline", "ltx_pipeline", gib=24),
    Run("ltx-pipeline-offload", "ltx_pipeline", {}, (_OFFLOAD,), gib=24),
    Run("wan", "wan", gib=10),
    Run("wan-pipeline", "wan_pipeline", {"frames": "33"}, gib=26),
    Run("hunyuan-video", "hunyuan_video", gib=32),
    Run("flux-pipeline", "flux_pipeline", gib=38),
    Run("flux-12-gb", "flux_pipeline", {}, (_OFFLOAD,), gib=8),
    Run("qwen3", "qwen3", gib=24, library=_HUB),
    Run("qwen3-generate", "qwen3", _GENERATE, gib=12, library=_HUB),
    Run("qwen3-static-cache", "qwen3", _GENERATE, (("kv_cache", {"kind": "static"}),), gib=12, library=_HUB),
    Run("mixtral", "mixtral", {"layers": "2", "sequence": "2048"}, gib=30, library=_HUB),
    Run("bert", "bert", optimizer="adamw", gib=16, library=_HUB),
    Run("vit", "vit", optimizer="adamw", gib=16, library=_HUB),
    Run("llama-lora", "llama", _LLAMA, (_LORA, _ALL), "adamw", 12, library=_HUB),
    Run("llama-chunked-loss", "llama", _LLAMA, (_LOSS, _ALL), "adamw", 24, library=_HUB),
    Run("llama-step-in-backward", "llama", _LLAMA, (("optimizer_in_backward", {}),), "adamw", 24, library=_HUB),
    Run("llama-8-bit", "llama", _LLAMA, (("eight_bit_states", {}),), "adamw", 24, library=_HUB),
    Run("llama-quantized", "llama", _READ, (("weight_quantization", {}),), gib=12, library=_HUB),
    Run("llama-quantized-4", "llama", _READ, (("weight_quantization", {"bits": "4"}),), gib=12, library=_HUB),
    Run("llama-pieces", "llama", {**_LLAMA, "batch": "4"}, (("gradient_accumulation", {}),), "adamw", 36, library=_HUB),
    Run("llama-activations-on-host", "llama", _LLAMA, (("activation_offload", {}),), gib=20, library=_HUB),
    Run("llama-chunked", "llama", _LLAMA, (("chunked_feed_forward", {}),), gib=20, library=_HUB),
    Run("llama-8b-lora", "llama", {"size": "8b", "sequence": "4096"}, (_LORA, _ALL, _LOSS), "adamw", 24, library=_HUB),
)  # fmt: skip

_LARGEST_ERROR_PERCENT = 5.0
_GRANULE = 2 << 20


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_every_run_is_one_that_the_command_line_accepts(run: Run):
    plan = plan_of(replace(run.request, on="cuda"))
    assert {change.name for change in plan.optimizations} == dict(run.optimizations).keys()


@pytest.mark.gpu
@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_a_run_is_replayed_exactly_and_predicted(run: Run, tmp_path: Path, gpu: Gpu):
    if run.library:
        pytest.importorskip(run.library)
    if run.gib > gpu.card.memory_gib:
        pytest.skip(f"needs about {run.gib:g} GiB of the card")
    request = replace(run.request, on="cuda", numerics=False)
    with Worker(tmp_path, environment=environment_of(request)) as worker:
        *_, last = worker.run([request])
    assert last.run is not None and last.file is not None, last.text
    trace = load_trace(last.file)
    assert_replays_exactly(trace)
    release = ".".join(map(str, gpu.release))
    plan = replace(plan_of(replace(request, on="predict", torch=release)), card=gpu.card)
    done = predict(plan, lambda phase: None)
    errors = {}
    for name in ("allocated", "reserved"):
        measured, predicted = (getattr(made, f"peak_{name}_bytes") for made in (last.run, done.run))
        errors[name] = round(100 * (predicted / measured - 1), 2)
    seconds = None if last.run.seconds is None else asdict(last.run.seconds)
    show(run.name, error_percent=errors, seconds=seconds, notes=last.run.notes)
    differences = [most_different(trace, done.trace, by) for by in ("category", "module")]
    assert max(map(abs, errors.values())) <= _LARGEST_ERROR_PERCENT, differences


@pytest.mark.gpu
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_program_is_replayed_exactly(program: Program, tmp_path: Path, gpu: Gpu, python: Python):
    trace, figures = record(program, tmp_path, python)
    events = gpu_of(trace).events
    assert (events.action == Action.ALLOC).sum() == figures["allocs"]
    assert (events.action == Action.FREE_REQUESTED).sum() == figures["frees"]
    assert_replays_exactly(trace)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["lengths-expandable", "lengths-max-split"])
def test_replay_under_other_settings_is_what_comes_of_them(name: str, tmp_path: Path, gpu: Gpu, python: Python):
    plain, other = program_named("lengths"), program_named(name)
    base, _ = record(plain, tmp_path, python)
    repeated, figures = record(other, tmp_path, python)
    predicted = replay(base, gpu_of(base), settings=parse_settings(other.conf), total=figures["total"])
    assert_alike(repeated, predicted)


@pytest.mark.gpu
@pytest.mark.parametrize("share", [0.5, -0.1], ids=["tight", "short"])
def test_replay_with_less_memory_is_what_comes_of_it(share: float, tmp_path: Path, gpu: Gpu, python: Python):
    """Between the allocated and the reserved peak the allocator frees its cache; below the first it runs out."""
    program = program_named("lengths")
    base, figures = record(program, tmp_path, python)
    low, high = figures["peak_allocated_bytes"], figures["peak_reserved_bytes"]
    limit = int(low + share * (high - low) if share > 0 else low * (1 + share)) // _GRANULE * _GRANULE
    repeated, figures = record(program, tmp_path, python, limit)
    settings = Replayer(base, gpu_of(base)).recorded
    settings = replace(settings, per_process_memory_fraction=figures["fraction"])
    assert_alike(repeated, replay(base, gpu_of(base), settings=settings, total=figures["total"]))


def program_named(name: str) -> Program:
    return next(program for program in PROGRAMS if program.name == name)


def record(program: Program, folder: Path, python: Python, limit: int | str = "") -> tuple[Trace, dict[str, Any]]:
    variables = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF") if program.conf else ()
    file = folder / f"{program.name}{limit}.pickle.gz"
    done = python("-m", "tests.gpu.programs", program.name, file, limit, **dict.fromkeys(variables, program.conf))
    figures = json.loads(done.stdout)
    show(program.name, **figures)
    return load_trace(file), figures


def assert_replays_exactly(trace: Trace) -> None:
    """The allocator model lands on every recorded address."""
    done = replay(trace, gpu_of(trace))
    assert done.agreement is not None
    assert (done.agreement.address_mismatches, done.exact) == (0, True), done.agreement.first_mismatch
    assert done.peak_reserved_bytes == timeline(gpu_of(trace)).reserved_peak_bytes


def assert_alike(repeated: Trace, predicted: Any) -> None:
    measured, replayed = gpu_of(repeated), predicted.trace.devices[0]
    assert predicted.peak_reserved_bytes == timeline(measured).reserved_peak_bytes
    growth = (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)
    assert sizes_of(replayed, *growth) == sizes_of(measured, *growth)
    short = predicted.oom
    ran_out = short and {"served": len(sizes_of(replayed, Action.ALLOC)), "asked": short.requested_bytes}
    assert ran_out == out_of_memory_at(measured)


def show(name: str, **figures: Any) -> None:
    print(json.dumps({"name": name, **figures}, default=list))  # noqa: T201
