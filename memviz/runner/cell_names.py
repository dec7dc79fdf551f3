"""Names for a cell of a notebook that is predicted: those of the notebook, which stays as it is.

Models, optimizers and other objects that the cell names are copied, since `model.cuda()` changes the model itself;
tensors and arrays are shared.
"""

from __future__ import annotations

import copy
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
from torch import Tensor, nn

from memviz.errors import UsageError
from memviz.predictor.shapes import tensors_among


def names_of_cell(notebook: dict[str, Any], codes: list[CodeType]) -> dict[str, Any]:
    """Return the names for a cell: those of the notebook, with copies of what the cell could change."""
    names = dict(notebook)
    used = {name: notebook[name] for name in _names_read(codes, notebook) if name in notebook}
    functions = {name: value for name, value in used.items() if _is_of_notebook(value, notebook)}
    values = {name: value for name, value in used.items() if not isinstance(value, ModuleType | type | FunctionType)}
    for name, value in values.items():
        _refuse_other_devices(name, value)
    names.update(_copies(values, notebook))
    # Functions of the notebook look up names where they were made: here, among the copies.
    for name, function in functions.items():
        made = FunctionType(function.__code__, names, name, function.__defaults__, function.__closure__)
        made.__kwdefaults__, made.__dict__ = function.__kwdefaults__, dict(vars(function))
        names[name] = made
    return names


def _is_of_notebook(value: Any, notebook: dict[str, Any]) -> bool:
    return isinstance(value, FunctionType) and value.__globals__ is notebook


def _names_read(codes: list[CodeType], notebook: dict[str, Any]) -> set[str]:
    """Return the names that a cell may read, also by the notebook's functions that it calls."""
    names: set[str] = set()
    waiting = list(codes)
    while waiting:
        code = waiting.pop()
        waiting += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
        for name in set(code.co_names) - names:
            names.add(name)
            if _is_of_notebook(notebook.get(name), notebook):
                waiting.append(notebook[name].__code__)
    return names


def _copies(values: dict[str, Any], notebook: dict[str, Any]) -> dict[str, Any]:
    """Copy values together, so that an optimizer keeps the parameters of its model; one that cannot be is shared."""

    def is_shared(value: Any) -> bool:
        return isinstance(value, Tensor | np.ndarray) and not isinstance(value, nn.Parameter)

    memo: dict[int, Any] = {id(value): value for value in notebook.values() if is_shared(value)}
    copies = {}
    for name, value in values.items():
        try:
            copies[name] = copy.deepcopy(value, memo)
        except Exception:
            copies[name] = value
    return copies


def _refuse_other_devices(name: str, value: Any) -> None:
    for tensor in tensors_among(value, with_owners=True):
        if tensor.device.type != "cpu":
            raise UsageError(
                f"{name} has a tensor on {tensor.device}, but a predicted cell can use CPU tensors only. "
                "Make it in the cell, or move it with .cpu() first."
            )
