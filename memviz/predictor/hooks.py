"""Hooks around operators: modules, optimizers, phases, compiled code, other libraries, threads and child processes.

At the end of a phase, cycles of objects are collected: Python would have done so by then, at a time that no
prediction can follow, and most of what a step leaves behind is young.

TorchScript's interpreter is C++ and knows no predicted device, so scripted code runs as plain Python, and export is
refused. Triton kernels do not run: they write into existing tensors, so their memory is what the Python around them
allocates. torch keeps its modes for one thread alone, so each new thread enters them again.
"""

from __future__ import annotations

import gc
import importlib
import inspect
import logging
import mmap
import multiprocessing
import os
import re
import shlex
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import partial, wraps
from importlib.util import find_spec
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from threading import RLock
from types import NoneType, SimpleNamespace
from typing import Any, Self
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from memviz.predictor.assumptions import Assumptions, data_needed, not_predicted, refusing
from memviz.predictor.compat import (
    LateDynamo,
    Patches,
    signatures_of_torch,
    without_function_modes,
    without_functions,
    without_modes,
)
from memviz.predictor.compiled import Compiler
from memviz.predictor.cuda.machine import on_card
from memviz.predictor.position import NO_TASK, ProgramPosition, frames
from memviz.predictor.recorder import AllocationRecorder
from memviz.predictor.repetition import BlockRepeater
from memviz.predictor.saved_files import path_of
from memviz.predictor.shapes import tensors_among
from memviz.predictor.tensor_answers import rebuild_without_values
from memviz.trace.model import Stage

_NO_FAST_PATH = (
    "The fused inference kernels of nn.TransformerEncoder are not predicted: its layers run operator by operator."
)
_NOT_COMPILED = (
    "torch.compile is not predicted: the code ran uncompiled, operator by operator. Compiled code keeps less memory "
    "between operators, so this is the peak without compilation. Use predict --compile for compiled code."
)
_BLOCKS_ALONE = "A compiled create_block_mask is predicted with its blocks only: compiled code keeps no dense mask."
_COMPILED = "OptimizedModule"
"""Class of a compiled module, by name because its import takes seconds."""
_STEP = "optimizer step"
_PHASES_BETWEEN_FULL_COLLECTIONS = 64


class ProgramPhases:
    """Phases of a program that names none itself: forward, backward and optimizer step."""

    def __init__(self, mark: Callable[[str, Stage], None], position: ProgramPosition) -> None:
        self._mark = mark
        self._position = position
        self._open = ""
        self._ended = 0

    def begin(self, name: str) -> bool:
        """Return False within another phase, and where the runner names the phases."""
        if self._open or self._position.phases or self._position.task != NO_TASK:
            return False
        self._open = name
        self._mark(name, Stage.START)
        return True

    def end(self, name: str) -> None:
        if self._open != name:
            return
        self._ended += 1
        # Most of what a step leaves behind is young.
        gc.collect(2 if self._ended % _PHASES_BETWEEN_FULL_COLLECTIONS == 0 else 1)
        self._mark(name, Stage.END)
        self._open = ""


def follow_modules(
    patches: Patches,
    recorder: AllocationRecorder,
    phases: ProgramPhases,
    blocks: BlockRepeater,
    compiler: Compiler | None = None,
) -> None:
    """Follow calls of modules. Forward is the call of an outermost module with weights; a loss has none."""
    position, assumptions = recorder.position, recorder.assumptions
    call = nn.Module.__call__

    def recorded(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if compiler is None and (type(self).__name__ == _COMPILED or self._compiled_call_impl is not None):
            assumptions.say(_NOT_COMPILED)
        assumptions.module_called(self)
        compiled = None if compiler is None else compiler.instead_of(self)
        with position.inside(self):
            out = blocks.run(self, args, kwargs, call) if compiled is None else compiled(*args, **kwargs)
        if not position.modules:
            recorder.model_returned(out)
        return out

    def called(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if position.modules or next(nn.Module.parameters(self), None) is None or not phases.begin("forward"):
            return recorded(self, *args, **kwargs)
        position.here.steps = 0
        try:
            return recorded(self, *args, **kwargs)
        finally:
            phases.end("forward")

    def no_fast_path() -> bool:
        if not torch.is_grad_enabled():
            assumptions.say(_NO_FAST_PATH)
        return False

    patches.replace(nn.Module, "__call__", called)
    patches.replace(torch.backends.mha, "get_fastpath_enabled", no_fast_path)


def follow_backward(patches: Patches, phases: ProgramPhases) -> None:
    def in_backward(run: Callable[..., Any]) -> Callable[..., Any]:
        def run_in_phase(*args: Any, **kwargs: Any) -> Any:
            if not phases.begin("backward"):
                return run(*args, **kwargs)
            try:
                return run(*args, **kwargs)
            finally:
                phases.end("backward")

        return run_in_phase

    for name in ("backward", "grad"):
        patches.replace(torch.autograd, name, in_backward(getattr(torch.autograd, name)))


def follow_optimizers(patches: Patches, recorder: AllocationRecorder, phases: ProgramPhases) -> None:
    here = recorder.position.here

    def begin_step(*_: Any) -> None:
        here.steps += 1
        phases.begin(_STEP)

    def end_step(optimizer: Any, args: Any, kwargs: Any) -> None:
        here.steps -= 1
        recorder.optimizer_stepped(optimizer)
        phases.end(_STEP)

    patches.callback(register_optimizer_step_pre_hook(begin_step).remove)
    patches.callback(register_optimizer_step_post_hook(end_step).remove)
    names = ("_get_foreach_kernels_supported_devices", "_get_fused_kernels_supported_devices")
    for path in ("torch.optim.optimizer", "torch.utils._foreach_utils", "torch.optim.swa_utils"):
        module = importlib.import_module(path)
        for name in names:
            supported = vars(module).get(name)
            if supported is not None:
                patches.replace(module, name, lambda supported=supported: [*supported(), "meta"])


class EnoughSteps(SystemExit):
    """Ends the program as `sys.exit(0)` does."""


_DEEPSPEED_OPTIMIZERS = {
    "zero.stage_1_and_2": "DeepSpeedZeroOptimizer",
    "zero.stage3": "DeepSpeedZeroOptimizer_Stage3",
    "bf16_optimizer": "BF16_Optimizer",
    "fp16.fused_optimizer": "FP16_Optimizer",
    "fp16.unfused_optimizer": "FP16_UnfusedOptimizer",
}
"""Wrappers, by module. A step of theirs steps the optimizer inside once for each part; so may making its states."""


class OptimizerSteps:
    """Ends a program when all of its optimizers have taken their steps.

    An optimizer that never steps does not prolong it: one step too many of another ends the program too.
    """

    def __init__(self, most: int | None, tell: Callable[[int], None] = lambda steps: None) -> None:
        self._most = most
        self._tell = tell
        self._taken: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._patches = Patches()
        self._within_parts = False
        self.taken = 0
        """Steps of the optimizer that took most."""

    def __enter__(self) -> Self:
        original_init: Any = Optimizer.__init__

        def init(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            original_init(optimizer, *args, **kwargs)
            self._taken.setdefault(optimizer, 0)

        self._patches.replace(Optimizer, "__init__", init)
        self._patches.callback(register_optimizer_step_pre_hook(self._steps).remove)
        self._patches.callback(register_optimizer_step_post_hook(self._stepped).remove)
        for module, name in _DEEPSPEED_OPTIMIZERS.items():
            self._patches.after_import(f"deepspeed.runtime.{module}", partial(self._count_parts_once, name))
        return self

    def _count_parts_once(self, name: str, module: Any) -> None:
        kind = getattr(module, name)
        step: Callable[..., Any] = kind.step

        def uncounted(run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            self._within_parts = True
            try:
                return run(*args, **kwargs)
            finally:
                self._within_parts = False

        def step_whole(whole: Any, *args: Any, **kwargs: Any) -> Any:
            self._steps(whole.optimizer)
            result = uncounted(step, whole, *args, **kwargs)
            self._stepped(whole.optimizer)
            return result

        self._patches.put(kind, "step", step_whole)
        if make := vars(kind).get("initialize_optimizer_states"):
            self._patches.put(kind, make.__name__, lambda whole: uncounted(make, whole))

    def __exit__(self, *_: object) -> None:
        self._patches.close()

    def _steps(self, optimizer: Any, *_: Any) -> None:
        if self._most is not None and not self._within_parts and self._taken.get(optimizer, 0) >= self._most:
            raise EnoughSteps(0)

    def _stepped(self, optimizer: Any, *_: Any) -> None:
        if self._within_parts:
            return
        count = self._taken[optimizer] = self._taken.get(optimizer, 0) + 1
        if count > self.taken:
            self.taken = count
            self._tell(count)
        if self._most is not None and min(self._taken.values()) >= self._most:
            raise EnoughSteps(0)


def follow_resizing(patches: Patches, recorder: AllocationRecorder) -> None:
    """Follow the resizing of a storage itself, by which programs keep a tensor and free its memory."""
    resize: Any = torch.UntypedStorage.resize_

    def resized(self: torch.UntypedStorage, size: int) -> Any:
        result = resize(self, size)
        if self.device.type == "meta" and not recorder.making_on_meta:
            recorder.resized(self, "resize_")
        return result

    patches.put(torch.UntypedStorage, "resize_", resized)


_NO_GRAPHS = (
    'Code compiled with mode="reduce-overhead" or "max-autotune", or with inductor\'s triton.cudagraphs, runs in CUDA '
    "graphs, whose memory stays in its own pool between runs. The pool is not predicted: this is the peak of the same "
    "code without graphs."
)
_NOT_SCRIPTED = (
    "TorchScript (torch.jit.script, torch.jit.trace) is not predicted: the code ran uncompiled, operator by "
    "operator. Compiled code keeps less memory between operators, so this is the peak without TorchScript."
)
_NOT_WRITTEN = (
    "TorchScript code, exported programs and packages are not written to files; loading such a file in this run "
    "returns the saved module."
)
_TORCH = str(Path(torch.__file__).parent)
_INTERPRETS = "its code runs in TorchScript's interpreter, which does not support the simulated device"


def follow_compile(patches: Patches, recorder: AllocationRecorder, compiler: Compiler | None = None) -> None:
    """Run what `compiler` makes where torch.compile would compile; without it uncompiled code, and note that."""
    assumptions = recorder.assumptions

    def compile(model: Any = None, **kwargs: Any) -> Any:
        if model is None:
            return lambda function: compile(function, **kwargs)
        if isinstance(model, nn.Module) and "_orig_mod" not in vars(model):
            alias: nn.Module = object.__new__(type(model))
            vars(alias).update(vars(model))
            vars(model)["_orig_mod"] = alias
        path = f"{getattr(model, '__module__', '')}.{getattr(model, '__qualname__', '')}"
        if path.startswith("torch.nn.attention.flex_attention.flex_attention"):
            # Predicted as its compiled kernels take memory; uncompiled it compiles a function of its own.
            return model
        if path == "torch.nn.attention.flex_attention.create_block_mask":
            return partial(_block_mask, recorder, model)
        is_mode_of_graphs = kwargs.get("mode") in ("reduce-overhead", "max-autotune")
        inductor: Any = sys.modules.get("torch._inductor.config")
        by_default = is_mode_of_graphs or (inductor is not None and inductor.triton.cudagraphs)
        uses_graphs = (kwargs.get("options") or {}).get("triton.cudagraphs", by_default)
        graphs = (_NO_GRAPHS,) if uses_graphs else ()
        if compiler is not None:
            return assumptions.when_called(compiler.compiled(model, **kwargs), *graphs)
        return assumptions.when_called(model, _NOT_COMPILED, *graphs)

    def compile_in_place(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        compile(self, **kwargs)

    patches.replace(torch, "compile", compile)
    patches.replace(nn.Module, "compile", compile_in_place)
    # There are no graphs between whose replays memory could be handed on.
    patches.replace(torch.compiler, "cudagraph_mark_step_begin", lambda: None)
    patches.after_import(
        "torch._dynamo",
        lambda dynamo: patches.put(dynamo, "reset", partial(_reset_dynamo, dynamo.reset)),
        signatures_of_torch,
    )
    if compiler is None and not isinstance(sys.modules.get("torch._dynamo"), LateDynamo | NoneType):
        patches.enter_context(torch.compiler.set_stance("force_eager"))


def _reset_dynamo(reset: Callable[[], None]) -> None:
    """Reset Dynamo without the trees of CUDA graphs, which cannot be imported without CUDA."""
    with Patches() as patches:
        patches.put(torch.cuda, "is_available", lambda: False)
        reset()


def _block_mask(recorder: AllocationRecorder, create: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return a mask of blocks as compiled code makes it: the dense mask is never in memory."""
    recorder.assumptions.say(_BLOCKS_ALONE)
    with Patches() as patches:
        patches.put(recorder, "making_on_meta", True)
        mask = create(*args, **kwargs)
    for name, value in vars(mask).items():
        if isinstance(value, Tensor):
            setattr(mask, name, torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cuda"))
    return mask


def _call_traced(func: Callable[..., Any], inputs: Any, kwargs: dict[str, Any] | None = None) -> None:
    args = () if inputs is None else (inputs,) if isinstance(inputs, Tensor) else inputs
    func(*args, **(kwargs or {}))


def _script_files(assumptions: Assumptions, load: Any) -> tuple[Any, Any]:
    """Return the replacements of `torch.jit.save` and `torch.jit.load`, or those of `torch.export`."""
    saved = dict[Any, Any]()

    def save(obj: Any, f: Any, *_: Any, **__: Any) -> None:
        assumptions.say(_NOT_WRITTEN)
        saved[path_of(f) or id(f)] = obj

    def loaded(f: Any, *args: Any, **kwargs: Any) -> Any:
        if (kept := saved.get(path_of(f) or id(f))) is not None:
            return kept
        if "cuda" in str((args, kwargs.get("map_location"))):
            raise not_predicted("torch.jit.load", _INTERPRETS)
        return load(f, *args, **kwargs)

    return save, loaded


def follow_torchscript(patches: Patches, assumptions: Assumptions) -> None:
    script: Any = torch.jit.script
    save, loaded = _script_files(assumptions, torch.jit.load)

    def uncompiled(obj: Any, *_: Any, **__: Any) -> Any:
        if isinstance(obj, nn.Module) and not hasattr(obj, "save"):
            object.__setattr__(obj, "save", partial(save, obj))
        return assumptions.when_called(obj, _NOT_SCRIPTED)

    def traced(func: Any, example_inputs: Any = None, *_: Any, **kwargs: Any) -> Any:
        _call_traced(func, example_inputs, kwargs.get("example_kwarg_inputs"))
        return uncompiled(func)

    def traced_methods(mod: nn.Module, inputs: dict[str, Any], *_: Any, **__: Any) -> Any:
        for name, example in inputs.items():
            _call_traced(getattr(mod, name), example)
        return uncompiled(mod)

    def scripted(obj: Any, *args: Any, **kwargs: Any) -> Any:
        # torch's own code looks into what was compiled.
        frame = next(frames(), None)
        is_torch = frame is not None and frame.f_code.co_filename.startswith(_TORCH)
        if not is_torch:
            return uncompiled(obj)
        # Names of a class are looked up in the frame of the caller, which is one further up.
        return script(obj, *args, **{**kwargs, "_frames_up": kwargs.get("_frames_up", 0) + 1})

    def draw_graph(_: Any, model: nn.Module, input_to_model: Any = None, *__: Any, **___: Any) -> None:
        was_training = model.training
        _call_traced(model.eval(), input_to_model)
        model.train(was_training)

    for name in ("torch.utils.tensorboard.writer", "tensorboardX.writer"):
        patches.after_import(name, lambda writer: patches.put(writer.SummaryWriter, "add_graph", draw_graph))
    functions = {"script": scripted, "freeze": uncompiled, "optimize_for_inference": uncompiled, "trace": traced}
    functions |= {"trace_module": traced_methods, "save": save, "load": loaded}
    for name, function in functions.items():
        patches.replace(torch.jit, name, function)
    keep, kept = _script_files(assumptions, _run_without_modes(torch.export.load))
    exports = {name: _run_without_modes(vars(torch.export)[name]) for name in ("export", "draft_export")}
    for name, function in {**exports, "save": keep, "load": kept}.items():
        patches.replace(torch.export, name, function)
    patches.after_import("torch._inductor", lambda inductor: _keep_packages(patches, inductor, keep, kept, assumptions))
    exported: Any = torch.export.ExportedProgram
    patches.put(exported, "run_decompositions", _run_without_modes(exported.run_decompositions))


def _keep_packages(patches: Patches, inductor: Any, keep: Any, kept: Any, assumptions: Assumptions) -> None:
    """Run packages of AOTInductor as the programs that they are made of."""

    def packaged(program: Any, *_: Any, package_path: Any = None, **__: Any) -> Any:
        path = package_path or f"{id(program)}.pt2"
        keep(assumptions.when_called(program.module(), _NOT_COMPILED), path)
        return path

    patches.put(inductor, "aoti_compile_and_package", packaged)
    patches.put(inductor, "aoti_load_package", lambda path, *_, **__: kept(path))


def _run_without_modes(run: Any) -> Any:
    """Run code of torch that traces with tensors without data of its own; tensors of the card are such tensors too."""

    @wraps(run)
    def run_outside(*args: Any, **kwargs: Any) -> Any:
        with without_modes(), without_function_modes():
            return run(*args, **kwargs)

    return run_outside


TRITON_NOT_RUN = (
    "Kernels of Triton or CUDA C++ did not run: they write into existing tensors, so their memory is predicted, but "
    "their reads and writes are not counted as work."
)


def follow_triton(patches: Patches, forget_values: Callable[[Any], None], assumptions: Assumptions) -> None:
    """Skip kernels on tensors of the card, in CUDA C++ too; answer Triton's driver without a library of the card."""

    def skipping(run: Any) -> Any:
        def launched(kernel: Any, *args: Any, **kwargs: Any) -> Any:
            with without_functions():
                tensors = [tensor for tensor in tensors_among((args, kwargs)) if tensor.is_meta]
                if tensors:
                    forget_values(tensors)
            if not tensors:
                return run(kernel, *args, **kwargs)
            assumptions.say(TRITON_NOT_RUN)
            return None

        return launched

    def kernel_of_text(*_: Any, **__: Any) -> Any:
        kernel: Any = partial(skipping(lambda *_, **__: None), None)
        kernel.set_shared_memory_config = lambda _: None
        return kernel

    patches.replace(torch.cuda, "_compile_kernel", kernel_of_text)

    def skip(name: str) -> Callable[[Any], None]:
        return lambda module: patches.put(kind := getattr(module, name), "run", skipping(kind.run))

    patches.after_import("triton.runtime.jit", skip("JITFunction"))
    patches.after_import("triton.runtime.autotuner", skip("Autotuner"))
    patches.after_import(
        "triton.runtime.driver", lambda module: patches.put(module.driver, "_active", _triton_driver())
    )


def _triton_driver() -> Any:
    """Triton's own driver, without the part that it compiles and links to the card's library."""
    kind: Any = importlib.import_module("triton.backends.nvidia.driver").CudaDriver
    driver = kind.__new__(kind)
    super(kind, driver).__init__()

    def properties(device: int) -> dict[str, int]:
        of_torch: Any = torch.cuda.get_device_properties(device)
        names = {
            "max_shared_mem": "shared_memory_per_block_optin",
            "max_num_regs": "regs_per_multiprocessor",
            "multiprocessor_count": "multi_processor_count",
            "warpSize": "warp_size",
            "sm_clock_rate": "clock_rate",
            "mem_clock_rate": "memory_clock_rate",
            "mem_bus_width": "memory_bus_width",
        }
        return {name: getattr(of_torch, there) for name, there in names.items() if hasattr(of_torch, there)}

    driver.utils = SimpleNamespace(get_device_properties=properties)
    return driver


PAGED_STATES = (
    "Paged optimizer states of bitsandbytes are not counted: they are in managed memory outside PyTorch's allocator, "
    "which the driver moves to the card while a step uses them."
)


class _AbsentKernels:
    """The card's library of bitsandbytes before 0.46: its functions write into tensors that Python made for them."""

    compiled_with_cuda = True

    def __init__(self, of_host: Any) -> None:
        self._of_host = of_host

    def __getattr__(self, name: str) -> Any:
        # 0 is "no error".
        return getattr(self._of_host, name, lambda *args: 0)


def follow_bitsandbytes(patches: Patches, assumptions: Assumptions) -> None:
    """Make paged states of optimizers plain host tensors: its C library would look for a card, and end the process."""

    def paged(*shape: int, dtype: torch.dtype = torch.float32, device: Any = None) -> Any:
        assumptions.say(PAGED_STATES)
        state: Any = torch.empty(shape, dtype=dtype)
        state.is_paged, state.page_deviceid = True, getattr(device, "index", 0)
        return state

    def replace(module: Any) -> None:
        nothing = lambda *args, **kwargs: None  # noqa: E731
        for name, instead in (("get_paged", paged), ("prefetch_tensor", nothing), ("elementwise_func", nothing)):
            patches.replace(module, name, instead)

    def replace_library(cextension: Any) -> None:
        # Later releases register operators, whose results have rules.
        if find_spec("bitsandbytes._ops") is None:
            patches.put(cextension, "lib", _AbsentKernels(cextension.lib))

    patches.after_import("bitsandbytes.cextension", replace_library)
    patches.after_import("bitsandbytes.functional", replace)
    # It logs at length that it has no library for the card.
    logger = logging.getLogger("bitsandbytes.cextension")
    patches.put(logger, "disabled", True)


_DEEPSPEED_KERNELS = {
    "fused_adam": ("multi_tensor_adam",),
    "fused_lion": ("multi_tensor_lion",),
    "cpu_adam": ("create_adam", "adam_update", "adam_rollback", "destroy_adam"),
    "cpu_adagrad": ("create_adagrad", "adagrad_update", "destroy_adagrad"),
    "cpu_lion": ("create_lion", "lion_update", "destroy_lion"),
}
"""Functions of DeepSpeed's extensions that allocate nothing: they write into weights and states that Python made."""
DEEPSPEED_NOT_BUILT = (
    "DeepSpeed's optimizer kernels were not built or run: they write into existing weights and states, so their memory "
    "is predicted."
)


def refuse_compiled_extensions(patches: Patches) -> None:
    """Stop where a program compiles CUDA code while it runs; extensions for the host alone are compiled."""

    def refuse(module: Any) -> None:
        build = module._jit_compile

        def compile_extension(*args: Any, **kwargs: Any) -> Any:
            call = inspect.getcallargs(build, *args, **kwargs)
            if call["with_cuda"] or call["with_cuda"] is None and any(map(module._is_cuda_file, call["sources"])):
                reason, remedy = "it is CUDA code, which cannot run without a card", "Use the program's implementation"
                raise not_predicted(f"The extension {call['name']}", reason, f"{remedy} in PyTorch, if there is one")
            return build(*args, **kwargs)

        patches.put(module, "_jit_compile", compile_extension)

    patches.after_import("torch.utils.cpp_extension", refuse)


def follow_deepspeed(patches: Patches, forget_values: Callable[[Any], None], assumptions: Assumptions) -> None:
    """Replace DeepSpeed's optimizer extensions without building them, and refuse its other extensions by name."""

    def written(*args: Any) -> None:
        with without_functions():
            forget_values(list(tensors_among((args, {}))))

    def lamb(weight: Any, *rest: Any) -> Any:
        written(weight, *rest)
        # Two sums over blocks and the coefficient, in the order of fused_lamb_cuda.cpp.
        dtype = torch.float32 if weight.dtype is torch.float16 else weight.dtype
        _, _, coefficient = (torch.empty(count, dtype=dtype, device=weight.device) for count in (512, 512, 1))
        return coefficient

    def load(builder: Any, verbose: bool = False) -> Any:
        if builder.name == "fused_lamb":
            return SimpleNamespace(lamb=lamb)
        if (names := _DEEPSPEED_KERNELS.get(builder.name)) is None:
            raise not_predicted(f"DeepSpeed's extension {builder.name}", "its code is C++ and is not built here")
        assumptions.say(DEEPSPEED_NOT_BUILT)
        return SimpleNamespace(**dict.fromkeys(names, written))

    patches.after_import("deepspeed.ops.op_builder.builder", lambda module: patches.put(module.OpBuilder, "load", load))

    def be_alike(module: Any) -> None:
        # These ask rank 0 whether it has the same modules, and it is taken to be like this rank.
        for name in ("assert_ints_same_as_other_ranks", "assert_lst_len_same_as_other_ranks"):
            patches.replace(module, name, lambda values: None)

    patches.after_import("deepspeed.runtime.zero.utils", be_alike)


Mode = Callable[[], AbstractContextManager[Any]]
_RUNS_PYTHON = re.compile(r"(python|pypy)[\d.]*(\.exe)?|torchrun|accelerate|deepspeed|.*\.py")
_LOOKS_AT_FILES = {"file", "ldd", "ls", "stat", "which"}
"""Programs that may be given the path of Python and do not run it."""
_LONGEST_COMMAND = 100
_NEVER_ON_A_CARD = ("torch.utils.data", "multiprocessing.managers")


FOLLOWED_CHILDREN = "MEMVIZ_PREDICTED_CHILDREN"
"""Variable with the folder where processes that are predicted too leave their figures; set while there is one."""


def follow_threads(patches: Patches, *modes: Mode) -> None:
    """Let each thread that begins from now on see the same device."""
    bootstrap = vars(threading.Thread)["_bootstrap_inner"]

    def begun(self: threading.Thread) -> None:
        with ExitStack() as stack:
            for mode in modes:
                stack.enter_context(mode())
            bootstrap(self)

    patches.put(threading.Thread, "_bootstrap_inner", begun)


class ChildProcesses:
    """Processes that the program starts: only this process has the pretended card.

    A fork has a copy of the card, and sets a shared byte when it allocates there. Another Python process finds no
    card, and only its command is recorded.
    """

    def __init__(self, recorder: AllocationRecorder) -> None:
        self._used = mmap.mmap(-1, 1)
        self._recorder = recorder
        self.before_start: Callable[[], None] = lambda: None
        """Called before another program starts."""
        self.commands: Counter[str] = Counter()
        """Python commands that the program started, and how often."""

    @property
    def used_the_card(self) -> bool:
        return self._used[0] != 0

    def follow(self, patches: Patches) -> None:
        begin: Any = subprocess.Popen.__init__
        start: Any = BaseProcess.start
        shell: Any = os.system

        def begun(self_: Any, args: Any, *more: Any, **kwargs: Any) -> None:
            self._note_command(args)
            begin(self_, args, *more, **kwargs)

        def started(process: Any) -> None:
            method = process._start_method or multiprocessing.get_start_method()
            module = str(getattr(process._target, "__module__", ""))
            if method != "fork" and not module.startswith(_NEVER_ON_A_CARD):
                self._count(f"{method}: {getattr(process._target, '__qualname__', type(process).__qualname__)}")
            start(process)

        def system(command: Any) -> int:
            self._note_command(command)
            return int(shell(command))

        patches.put(subprocess.Popen, "__init__", wraps(begin)(begun))
        patches.put(BaseProcess, "start", wraps(start)(started))
        patches.put(os, "system", wraps(shell)(system))
        for name in ("execv", "execve"):  # the others of os end in these two
            patches.put(os, name, _run_and_end(getattr(os, name), os.getpid()))
        _followed.append(self)
        patches.callback(_followed.remove, self)

    def after_fork(self) -> None:
        """In the child: note its first use of the card."""
        ledger = self._recorder.ledger
        first_used = ledger.first_used

        def used() -> None:
            self._used[0] = 1
            if first_used is not None:
                first_used()

        ledger.first_used = used

    def _note_command(self, args: Any) -> None:
        self.before_start()
        arguments = [args] if isinstance(args, str | bytes | os.PathLike) else list(args)
        text = " ".join(map(os.fsdecode, arguments))
        try:
            parts = shlex.split(text)
        except ValueError:
            parts = text.split()
        names = [os.path.basename(part) for part in parts]
        if names[:1] and names[0] not in _LOOKS_AT_FILES and any(map(_RUNS_PYTHON.fullmatch, names)):
            self._count(text)

    def _count(self, command: str) -> None:
        self.commands[short_command(command)] += 1


def _run_and_end(replace_process: Any, process: int) -> Any:
    """Run a program that would replace this process as a child, then end: replaced, nothing is left to report."""

    @wraps(replace_process)
    def run(path: Any, args: Any, env: Any = None) -> Any:
        if os.getpid() != process or isinstance(path, int):
            return replace_process(path, args, *([] if env is None else [env]))
        status = subprocess.call(list(args), executable=path, env=env, close_fds=False)
        raise SystemExit(status if status >= 0 else 128 - status)

    return run


def short_command(command: str) -> str:
    text = " ".join(command.split())
    return text if len(text) <= _LONGEST_COMMAND else f"{text[:_LONGEST_COMMAND]}..."


_followed: list[ChildProcesses] = []
"""Hooks of the device in use. A global, because `os.register_at_fork` cannot be undone."""


def _after_fork() -> None:
    for children in _followed:
        children.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def follow_workers(patches: Patches, recorder: AllocationRecorder) -> None:
    """Let data-loading workers compute as their parent does, and send tensors without values as such."""
    from torch.multiprocessing import reductions
    from torch.utils.data._utils import worker

    run: Any = worker._worker_loop

    @wraps(run)
    def run_apart(*args: Any, **kwargs: Any) -> None:
        # Another thread may have held it when this process was made.
        recorder.ledger.interner.lock = RLock()
        recorder.ledger.closed = True
        run(*args, **kwargs)

    patches.put(worker, "_worker_loop", run_apart)
    original_reduce: Any = reductions.reduce_tensor

    def reduce_tensor(tensor: Tensor) -> Any:
        if on_card(tensor):
            raise data_needed("sending a tensor of the card to another process")
        if not recorder.host.is_unknown(tensor):
            return original_reduce(tensor)
        return rebuild_without_values, (tuple(tensor.shape), tensor.stride(), tensor.dtype)

    share: Any = refusing("sharing memory of the card with another process", "its handle is not valid there")
    patches.put(torch.UntypedStorage, "_share_cuda_", share)
    for kind in (Tensor, nn.Parameter):
        ForkingPickler.register(kind, reduce_tensor)
        patches.callback(ForkingPickler.register, kind, original_reduce)
