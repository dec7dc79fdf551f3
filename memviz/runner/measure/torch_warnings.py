"""What PyTorch warns of while a run goes on. Its C++ says much nowhere else: that a setting has no effect on this
platform, and why an attention kernel refused its inputs."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_MOST = 16
_MOST_CHARACTERS = 400
_FROM_CPP = "Triggered internally"
_WHERE = re.compile(rf"\s*\({_FROM_CPP} at .*\)\s*$", re.DOTALL)
_REFUSED = "not used because"
_NO_KERNEL = "no available kernel"


class Warned:
    """Each sentence once, in order. What others than PyTorch warn of is left out."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def hear(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        *more: Any,
        **named: Any,
    ) -> None:
        """In the place of `warnings.showwarning`, whose further arguments say nothing that we show."""
        text = str(message)
        if _FROM_CPP not in text and "/torch/" not in filename.replace("\\", "/"):
            return
        words = " ".join(_WHERE.sub("", text).split())
        if words and words not in self.words and len(self.words) < _MOST:
            self.words.append(words if len(words) <= _MOST_CHARACTERS else f"{words[:_MOST_CHARACTERS]} …")

    def notes(self) -> tuple[str, ...]:
        return tuple(f"PyTorch warns: {each}" for each in self.words)

    def about(self, error: BaseException) -> str:
        """Where no attention kernel is left, torch has warned before why each of them is not."""
        first = next((at for at, each in enumerate(self.words) if _REFUSED in each), None)
        if _NO_KERNEL not in str(error).lower() or first is None:
            return ""
        return f"PyTorch's reasons: {' '.join(self.words[first:])}"


@contextmanager
def hearing_torch() -> Iterator[Warned]:
    """Whatever is done with warnings otherwise."""
    warned = Warned()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = warned.hear
        yield warned
