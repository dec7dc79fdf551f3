"""TorchScript, exported programs and Triton kernels on a predicted device.

TorchScript's interpreter is C++ and knows no predicted device, so scripted code runs as plain Python, and export is
refused. Triton kernels do not run: they write into existing tensors, so their memory is what the Python around them
allocates. Triton is not imported for this.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from memviz.runner.predict.arguments import tensors_among
from memviz.runner.predict.assumptions import Assumptions
from memviz.runner.predict.prediction_errors import not_predicted
from memviz.runner.predict.program_frames import frames
from memviz.runner.predict.torch_patches import Patches

_AS_IT_STANDS = (
    "TorchScript (torch.jit.script, torch.jit.trace) is not predicted: what it would compile ran as it stands, "
    "operator by operator. Compiled code keeps less between its operators, so this peak is that of the model as it is."
)
_NOT_WRITTEN = "What TorchScript would compile is not written to files (torch.jit.save)."
_TORCH = str(Path(torch.__file__).parent)
_EXPORT_TRACES = (
    "it traces with tensors without data, also a model of the host, and while a program is predicted those stand for "
    "tensors of the card"
)
_INTERPRETS = "its code runs in TorchScript's interpreter, which knows no pretended device"


@contextmanager
def nothing_scripted(assumptions: Assumptions) -> Iterator[None]:
    patches = Patches()
    try:
        _follow_torchscript(patches, assumptions)
        yield
    finally:
        patches.undo()


def _follow_torchscript(patches: Patches, assumptions: Assumptions) -> None:
    def as_it_stands(obj: Any, *_: Any, **__: Any) -> Any:
        if isinstance(obj, nn.Module) and not hasattr(obj, "save"):
            object.__setattr__(obj, "save", not_written)
        return assumptions.when_called(obj, _AS_IT_STANDS)

    def traced(func: Any, example_inputs: Any = None, *_: Any, **kwargs: Any) -> Any:
        """Tracing runs it once."""
        _run_once(func, example_inputs, kwargs.get("example_kwarg_inputs"))
        return as_it_stands(func)

    def traced_by_names(mod: nn.Module, inputs: dict[str, Any], *_: Any, **__: Any) -> Any:
        for name, given in inputs.items():
            _run_once(getattr(mod, name), given, None)
        return as_it_stands(mod)

    def not_written(*_: Any, **__: Any) -> None:
        assumptions.say(_NOT_WRITTEN)

    def scripted(obj: Any, *args: Any, **kwargs: Any) -> Any:
        """torch's own code looks into what was compiled."""
        frame = next(frames(), None)
        own = frame is not None and frame.f_code.co_filename.startswith(_TORCH)
        return script(obj, *args, **kwargs) if own else as_it_stands(obj)

    script = torch.jit.script
    patches.replace(torch.jit, "script", scripted)
    for name in ("freeze", "optimize_for_inference"):
        patches.replace(torch.jit, name, as_it_stands)
    patches.replace(torch.jit, "trace", traced)
    patches.replace(torch.jit, "trace_module", traced_by_names)
    patches.replace(torch.jit, "save", not_written)
    patches.replace(torch.jit, "load", _load_on_host(torch.jit.load))
    patches.replace(torch.export, "export", _refuse_export)


def _run_once(func: Callable[..., Any], inputs: Any, named: dict[str, Any] | None) -> None:
    if inputs is None:
        inputs = ()
    func(*((inputs,) if isinstance(inputs, Tensor) else inputs), **(named or {}))


def _load_on_host(load: Callable[..., Any]) -> Callable[..., Any]:
    def loaded(f: Any, map_location: Any = None, **kwargs: Any) -> Any:
        if "cuda" in str(map_location):
            raise not_predicted("torch.jit.load", _INTERPRETS)
        return load(f, map_location, **kwargs)

    return loaded


def _refuse_export(*_: Any, **__: Any) -> None:
    raise not_predicted("torch.export.export", _EXPORT_TRACES)


TRITON_NOT_RUN = (
    "Kernels written in Triton did not run: they write into tensors that are there, so their memory is predicted, and "
    "what they read and write is not counted as work."
)
_LAUNCHED_BY = (("triton.runtime.jit", "JITFunction"), ("triton.runtime.autotuner", "Autotuner"))
ForgetValues = Callable[[Any], None]
"""The values of the tensors in something."""


def follow_triton(patches: Patches, lose: ForgetValues, assumptions: Assumptions) -> None:
    for module, name in _LAUNCHED_BY:
        kind = getattr(sys.modules.get(module), name, None)
        if kind is not None:
            patches.replace(kind, "run", _skip_on_card(kind.run, lose, assumptions))


def _skip_on_card(run: Any, lose: ForgetValues, assumptions: Assumptions) -> Any:
    def launched(kernel: Any, *args: Any, **kwargs: Any) -> Any:
        with torch._C.DisableTorchFunction():
            given = [tensor for tensor in tensors_among((args, kwargs)) if tensor.is_meta]
            if given:
                lose(given)
        if not given:
            return run(kernel, *args, **kwargs)
        assumptions.say(TRITON_NOT_RUN)
        return None

    return launched
