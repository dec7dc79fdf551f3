"""Private names of torch that several files of the predictor use, and what is replaced while a device is in use."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import ExitStack
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _disable_current_modes

from memviz.errors import UsageError

without_functions: Any = torch._C.DisableTorchFunction
"""Context without `__torch_function__`: tensors as they are here, not as the program sees them."""
without_modes: Any = _disable_current_modes
function_modes: Callable[[], list[Any]] = _get_current_function_mode_stack


class StandIn(type):
    """Metaclass of classes in place of torch's own: instances are those of `real`."""

    real: type

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, cls.real)


def required(owner: Any, name: str) -> Callable[..., Any]:
    """Return a private function that the predictor cannot do without."""
    function: Callable[..., Any] | None = getattr(owner, name, None)
    if function is None:
        raise UsageError(
            f"torch {torch.__version__} has no {owner.__name__}.{name}, by which the predictor follows backward; "
            "use a release from 2.6 to 2.13."
        )
    return function


class Patches(ExitStack):
    """Attributes replaced within a `with` block."""

    def replace(self, owner: Any, name: str, value: Any) -> Any:
        """Replace an attribute and return its old value; None if this release of torch lacks it."""
        before = vars(owner).get(name)
        if before is not None:
            self.put(owner, name, value)
        return before

    def put(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute that the owner may lack, or inherit."""
        if name in vars(owner):
            self.callback(setattr, owner, name, vars(owner)[name])
        else:
            self.callback(delattr, owner, name)
        setattr(owner, name, value)

    def restore(self, names: MutableMapping[str, Any], name: str) -> None:
        """Put an entry back at the end of the block, as it is now."""
        if name in names:
            self.callback(names.__setitem__, name, names[name])
        else:
            self.callback(names.pop, name, None)

    def put_all(self, owner: Any, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            self.put(owner, name, value)

    def after_import(self, name: str, change: Callable[[ModuleType], None]) -> None:
        """Change a module of another library as soon as it is imported; now, if it is already."""
        if name in sys.modules:
            return change(sys.modules[name])
        finder = _Changing(name, change)
        sys.meta_path.insert(0, finder)
        self.callback(sys.meta_path.remove, finder)
        return None


class _Changing:
    """Finder of one module, which is changed when its own code has run."""

    def __init__(self, name: str, change: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._change = change

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != self._name:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                self._change(module)

            # On the loader itself, which people and tracebacks ask for the source.
            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
