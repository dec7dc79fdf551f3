"""Two sentences: the answer, and the reason or what follows from it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Headline:
    answer: str
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.answer} {self.reason}".strip()
