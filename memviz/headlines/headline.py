"""Two sentences: the answer, and the reason or what follows from it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Headline:
    answer: str
    reason: str = ""

    def and_also(self, more: str) -> Headline:
        """With another sentence to the reason, where there is one to add."""
        return Headline(self.answer, f"{self.reason} {more}".strip())

    def as_estimate(self, limit: str = "") -> Headline:
        """Called an estimate, with what limits it."""
        return Headline(f"Estimate: {self.answer}", self.reason).and_also(limit)

    def __str__(self) -> str:
        return f"{self.answer} {self.reason}".strip()


def headline_json(headline: Headline) -> dict[str, str]:
    return {"answer": headline.answer, "reason": headline.reason}
