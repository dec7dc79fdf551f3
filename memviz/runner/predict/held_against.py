"""Recordings that others made on real cards, and published peaks, each beside what is predicted for it.

The figures are data, `held_against.json`: `python -m tests.truth.held_against` writes what recordings say, and
`python -m tests.benchmarks.published` what published tables say. From them follows how true a prediction is likely
to be.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from memviz.runner.expected_error import ExpectedError
from memviz.runner.predict.cards import KnownCard, card_named
from memviz.runner.predict.evidence import NCCL, Standing, Unproven
from memviz.runner.predict.operator_families import CONVOLUTIONS, NOT_COUNTED, families_of

DATA = Path(__file__).with_name("held_against.json")
Kind = Literal["training", "inference"]
CONVOLUTIONS_GREW_BY = 1.38
"""GPUMemNet's runs of convolutional networks of timm, measured elsewhere on an A100: of the worst, 58 % of what
nvidia-smi showed was not predicted, so that it came out higher by this share of the prediction."""


@dataclass(frozen=True)
class Held:
    """A peak that somebody measured, and what is predicted of it."""

    name: str
    card: str
    torch: str
    kind: Kind
    families: frozenset[str]
    live: tuple[int, int] | None
    """Measured and predicted bytes."""
    allocated: tuple[int, int] | None
    reserved: tuple[int, int] | None

    @property
    def is_published(self) -> bool:
        """A figure in a table, and not a recording of every allocation."""
        return self.live is None


@cache
def held() -> tuple[Held, ...]:
    return tuple(
        Held(
            name=row["name"],
            card=row["card"],
            torch=row["torch"],
            kind=row["class"],
            families=frozenset(row["families"]),
            live=_pair(row["live"]),
            allocated=_pair(row["allocated"]),
            reserved=_pair(row["reserved"]),
        )
        for part in json.loads(DATA.read_text(encoding="utf-8")).values()
        for row in part
    )


def _pair(value: list[int] | None) -> tuple[int, int] | None:
    return None if value is None else (value[0], value[1])


def is_recorded(card: KnownCard) -> bool:
    """Whether any recording is of a card with the same threads and workspaces: what the rules look at but for size."""
    return _like(card) in {_like(card_named(one.card)) for one in held() if not one.is_published}


def _like(card: KnownCard) -> tuple[int, int]:
    return card.threads_per_multiprocessor, card.cublas_workspace_bytes


def expected_error(
    operators: Iterable[str], *, trains: bool, card: KnownCard, unproven: Iterable[Unproven] = ()
) -> ExpectedError:
    """Expected error with these operators: by recordings alone where they have all that matters, else tables too.

    `unproven` are the rules that the prediction rests on: those that count nothing say how much is missing.
    """
    needed = families_of(operators)
    kind: Kind = "training" if trains else "inference"
    ours = [one for one in held() if one.kind == kind]
    recordings = [one for one in ours if not one.is_published]
    missing = needed - _covered(recordings)
    published = [one for one in ours if one.is_published and one.families & missing] if missing else []
    used = [*recordings, *published]
    missing -= _covered(published)
    counted = needed & NOT_COUNTED.keys()
    estimates = _estimates(unproven) if counted else []
    sizes = [size for size in estimates if size is not None]
    return ExpectedError(
        live=_worst(one.live for one in used),
        allocated=_worst(one.allocated for one in used),
        reserved=_worst(one.reserved for one in used),
        recordings=len(recordings),
        published=len(published),
        kind=kind,
        not_covered=tuple(sorted(missing - counted)),
        not_counted=tuple(NOT_COUNTED[family] for family in sorted(counted)),
        least_growth=CONVOLUTIONS_GREW_BY if CONVOLUTIONS in counted else 0.0,
        like_card=is_recorded(card),
        uncounted_bytes=sum(sizes) if sizes else None,
        estimates_all=len(sizes) == len(estimates),
    )


def _estimates(unproven: Iterable[Unproven]) -> list[int | None]:
    """Bytes at most of each rule that counts nothing; NCCL's buffers are in no peak of PyTorch's allocator."""
    return [one.bytes_at_most for one in unproven if one.standing == Standing.MISSING and one.rule != NCCL]


def _covered(rows: Iterable[Held]) -> frozenset[str]:
    return frozenset().union(*(one.families for one in rows))


def _worst(pairs: Iterable[tuple[int, int] | None]) -> float | None:
    """In percent, of what was measured."""
    errors = [100 * abs(predicted - measured) / measured for measured, predicted in filter(None, pairs)]
    return round(max(errors), 4) if errors else None
