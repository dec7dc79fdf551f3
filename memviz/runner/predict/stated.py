"""Values that are taken for those that nobody computes, and said to be taken: in the run's notes stands each of them.

torch's own code asks for some where every run that works gets the same answer: whether gradients overflowed, whether
the arguments of a distribution are valid.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from memviz.runner.predict.caller import first_of_torch, line_of_caller
from memviz.runner.predict.stand_in import STANDS, UnknownNumber


@dataclass(frozen=True)
class _Rule:
    file: str
    functions: tuple[str, ...]
    """Of that file; empty is any."""
    value: Callable[[FrameType], Any]
    sentence: str


_SCALER = "A scaler of gradients is taken to find no overflow: every step is taken, and its scale stays as it began."
_RULES = (
    _Rule("torch/amp/grad_scaler.py", ("get_scale",), lambda frame: frame.f_locals["self"]._init_scale, _SCALER),
    _Rule("torch/amp/grad_scaler.py", ("_get_growth_tracker",), lambda frame: 0, _SCALER),
    _Rule("torch/amp/grad_scaler.py", (), lambda frame: 0.0, _SCALER),
    _Rule(
        "torch/distributions/distribution.py",
        (),
        lambda frame: True,
        "Arguments and samples of torch.distributions are taken to be valid.",
    ),
    _Rule(
        "torch/nn/utils/clip_grad.py",
        (),
        lambda frame: False,
        "The norm of all gradients is taken to be a finite number.",
    ),
)


class Stated:
    def __init__(self) -> None:
        self._said: dict[str, None] = {}
        """In the order in which they were first needed."""

    @property
    def sentences(self) -> tuple[str, ...]:
        return tuple(self._said)

    def say(self, sentence: str) -> None:
        self._said[sentence] = None

    def for_torch(self) -> Any:
        """What torch's own code gets that asks now; None where it has to be refused."""
        frame = first_of_torch()
        if frame is None:
            return None
        file, function = Path(frame.f_code.co_filename).as_posix(), frame.f_code.co_name
        for rule in _RULES:
            if file.endswith(rule.file) and (not rule.functions or function in rule.functions):
                self.say(rule.sentence)
                return rule.value(frame)
        return None

    def number(self) -> UnknownNumber:
        """For a floating-point number that the program takes from a tensor."""
        line = line_of_caller()
        if not any(each.startswith(_NUMBERS) for each in self._said):
            where = f", first in {line}" if line else ""
            self.say(
                f"{_NUMBERS} from tensors are not computed{where}. They print as unknown, whatever decides by one is "
                f"stopped, and code that takes the number out by itself (math.exp, numpy) finds {STANDS}."
            )
        return UnknownNumber(line)


_NUMBERS = "Numbers that the program takes"
