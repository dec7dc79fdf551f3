"""A user's own model: `FILE.py:function`, where the function returns the model and its inputs, and perhaps a loss.

Here the file is read, and its function called, in the process that runs the step. Before that it is only parsed: a
wrong name is refused without a line of it being executed.
"""

from __future__ import annotations

import inspect
import sys
import traceback
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Self, get_type_hints

import torch
from torch import Tensor, nn

from memviz.errors import UsageError
from memviz.runner.output_check.model_runs import flatten
from memviz.runner.own_source import function_in, functions_of, read_argument
from memviz.runner.request import as_text, knob, knobs_of, with_knobs
from memviz.runner.workloads.workload import DTYPES, Workload, parameters_text
from memviz.units import kind_text

_AS_BUILT = "as built"
_EXECUTED = "_executed_by_memviz"
_OWN_LOSS = "Return (model, inputs, loss), where loss(output) makes such a tensor of what the model returns."


class BuiltModel(NamedTuple):
    """Result of the user's function."""

    model: nn.Module
    inputs: dict[str, Any]
    loss: Callable[[Any], Tensor]


@dataclass(frozen=True, eq=False)
class OwnModel(Workload):
    name = "own"
    title = "Your model (Python file)"
    sentence = "A function in a Python file that returns a model and its inputs."

    file: str = field(default="", metadata={"python_only": True})
    function: str = field(default="", metadata={"python_only": True})
    arguments: tuple[tuple[str, str], ...] = field(default=(), metadata={"python_only": True})
    """Texts for the function's own parameters."""
    dtype: str = knob(_AS_BUILT, "number format to convert weights and inputs to", choices=(_AS_BUILT, *DTYPES))
    _made: dict[str, BuiltModel] = field(default_factory=dict, init=False, repr=False)

    def build(self) -> nn.Module:
        built = self._call()
        self._made["last"] = built
        model = built.model if self.dtype == _AS_BUILT else built.model.to(DTYPES[self.dtype])
        return model.train(self.training)

    def inputs(self, device: torch.device, micro_batch: int = 0) -> dict[str, Any]:
        """Return the function's inputs, the same for every micro-batch; made again if they are on meta."""
        built = self._made.get("last")
        if built is None or (_without_numbers(built.inputs) and device.type != "meta"):
            with torch.device("cpu"), torch.random.fork_rng(devices=[]):
                torch.manual_seed(self.seed)
                built = self._call()
        dtype = None if self.dtype == _AS_BUILT else DTYPES[self.dtype]
        moved: dict[str, Any] = _moved_inputs(built.inputs, device, dtype)
        return moved

    def loss(self, output: Any) -> Tensor:
        return _checked_loss(self._made["last"].loss(output))

    def forget(self) -> None:
        """Free the model that was built last, and the file's own variables, which may hold it too."""
        self._made.clear()
        module = sys.modules.get(Path(self.file).stem)
        if module is not None and getattr(module, _EXECUTED, False):
            del sys.modules[module.__name__]

    def small(self) -> Self:
        if "small" not in function_in(self.file, self.function).parameters:
            raise UsageError(
                f"{self.function} in {self.file} has no reduced model to check outputs on. Give it a parameter "
                "small=False, and let it return a small model of the same kind when it is true."
            )
        return replace(self, arguments=(*self.arguments, ("small", "true")))

    def describe(self) -> str:
        what = "training step" if self.training else "forward pass"
        built = self._made.get("last")
        count = (
            f"{parameters_text(sum(parameter.numel() for parameter in built.model.parameters()))}, " if built else ""
        )
        return f"{self.function} of {Path(self.file).name}, {count}{self.dtype}, {what}"

    def _call(self) -> BuiltModel:
        with _located_errors(self.file):
            function = getattr(_module_of(self.file), self.function)
            returned = function(**_arguments(function, self.arguments))
        return _checked_model(returned, f"{self.function} in {self.file}")


def own_workload(name: str, settings: Mapping[str, str]) -> OwnModel:
    """Pass settings to the function's parameters and to the knobs of `OwnModel`; to both where both have the name."""
    file, _, wanted = name.partition(":")
    function = function_in(file, wanted)
    common = as_text(OwnModel(), everything=True)
    function.check(settings, common)
    knobs = with_knobs(OwnModel, {key: text for key, text in settings.items() if key in common})
    arguments = tuple((key, text) for key, text in settings.items() if function.takes(key, common))
    return replace(knobs, file=file, function=function.name, arguments=arguments)


def program_rows(file: str) -> list[dict[str, Any]]:
    """Return the file's functions as rows of the page's form; the file is parsed and not executed."""
    common = [asdict(knob) for knob in knobs_of(OwnModel)]
    names = {knob["name"] for knob in common}
    rows = []
    for function in functions_of(file):
        own = [asdict(knob) for knob in function.knobs if knob.name not in (*names, "small")]
        sentence = function.sentence or "A function of your program that returns a model and its inputs."
        title = f"{function.name} of {Path(file).name}"
        rows.append({"name": f"{file}:{function.name}", "title": title, "sentence": sentence, "knobs": [*own, *common]})
    return rows


def _module_of(file: str) -> types.ModuleType:
    """Execute the file. Files in its folder can be imported, as when Python runs it."""
    path = Path(file).resolve()
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    module = types.ModuleType(path.stem)
    module.__file__ = str(path)
    setattr(module, _EXECUTED, True)
    sys.modules[path.stem] = sys.modules.get(path.stem, module)
    exec(compile(path.read_bytes(), str(path), "exec"), module.__dict__)
    return module


def _arguments(function: Callable[..., Any], texts: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    hints = get_type_hints(function)
    parameters = inspect.signature(function).parameters
    values = {}
    for key, text in texts:
        default = parameters[key].default if key in parameters else inspect.Parameter.empty
        values[key] = read_argument(function.__name__, key, text, hints.get(key), default)
    return values


@contextmanager
def _located_errors(file: str) -> Iterator[None]:
    """Show an error of the user's code with its own text, file and line."""
    try:
        yield
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        here = str(Path(file).resolve())
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == here]
        line = f", line {lines[-1]}" if lines else ""
        raise UsageError(f"{file}{line}: {type(error).__name__}: {error}") from error


def _checked_model(returned: Any, where: str) -> BuiltModel:
    pieces = returned if isinstance(returned, tuple) else (returned,)
    if len(pieces) not in (2, 3) or not isinstance(pieces[0], nn.Module):
        raise UsageError(f"{where} must return (model, inputs) or (model, inputs, loss), with a torch.nn.Module first.")
    model, inputs = pieces[:2]
    loss = pieces[2] if len(pieces) == 3 else default_loss
    if not callable(loss):
        raise UsageError(f"{where}: the loss must be a function of the model's output, not {type(loss).__name__}.")
    return BuiltModel(model, _by_name(model, inputs, where), loss)


def _by_name(model: nn.Module, inputs: Any, where: str) -> dict[str, Any]:
    if isinstance(inputs, Mapping):
        return dict(inputs)
    values = tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)
    try:
        bound = inspect.signature(model.forward).bind(*values).arguments
    except TypeError as error:
        raise UsageError(f"{where}: the inputs do not fit the model's forward: {error}.") from None
    kinds = {inspect.signature(model.forward).parameters[key].kind for key in bound}
    if kinds & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY}:
        raise UsageError(f"{where}: the model's forward takes positional-only inputs. Return them as a dict by name.")
    return dict(bound)


def default_loss(output: Any) -> Tensor:
    """Return the model's own loss if its output has one, else the mean of its first output."""
    own = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(own, Tensor):
        return own
    first = next((tensor for tensor in flatten(output).values() if tensor.is_floating_point()), None)
    if first is None:
        kind = "nothing (None)" if output is None else kind_text(output)
        inside = "no floating-point tensor in it, so " if output is not None else ""
        raise UsageError(f"The model returns {kind}, with {inside}no mean to train on. {_OWN_LOSS}")
    return first.mean()


def _checked_loss(loss: Any) -> Tensor:
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        what = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else kind_text(loss)
        raise UsageError(f"The loss is {what}; a training step needs a tensor with one number. {_OWN_LOSS}")
    if torch.is_grad_enabled() and not loss.requires_grad:
        raise UsageError(
            "The loss does not depend on a trainable parameter. Leave some with requires_grad=True, and compute the "
            "loss from the model's output, without detach() or item()."
        )
    return loss


def _moved_inputs(value: Any, device: torch.device, dtype: torch.dtype | None) -> Any:
    if isinstance(value, Tensor):
        return value.to(device, dtype if value.is_floating_point() else None)
    if isinstance(value, dict):
        return {key: _moved_inputs(item, device, dtype) for key, item in value.items()}
    if isinstance(value, list) or type(value) is tuple:
        return type(value)(_moved_inputs(item, device, dtype) for item in value)
    return value


def _without_numbers(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.device.type == "meta"
    if isinstance(value, dict):
        value = tuple(value.values())
    return isinstance(value, list | tuple) and any(_without_numbers(item) for item in value)
