"""One round of cases: which can be carried out here, within its time, and which stand in OUT already."""

from __future__ import annotations

import fcntl
import importlib.util
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.gpu.case import Case
from tests.gpu.results import Results

_PATIENCE = 4
"""So many times as long as expected a case may take, and no less than `_LEAST_SECONDS`."""
_LEAST_SECONDS = 90.0
_NOT_AGAIN = "stands in OUT already; --again repeats it"


@dataclass
class Round:
    results: Results
    seconds: float
    """For all of them together."""
    has_gpu: Callable[[], bool]
    carry_out_within: Callable[[Case, float], str]
    """'' or, in words, what became of it instead of a result."""
    again: bool = False
    now: Callable[[], float] = time.monotonic
    _began: float = field(init=False)

    def __post_init__(self) -> None:
        self._began = self.now()

    @property
    def left(self) -> float:
        return self.seconds - (self.now() - self._began)

    def why_not(self, case: Case) -> str:
        """Why it is not carried out, or ''."""
        if not self.again and self.results.result(case.part, case.name) is not None:
            return _NOT_AGAIN
        if case.of is not None:
            found = self.results.result(*case.of)
            if found is None:
                return f"{'/'.join(case.of)} is not in OUT"
            if case.part == "truth" and found["ran_out"]:
                return "the run ran out of memory, and predictions are of whole runs"
        if case.needs_gpu and not self.has_gpu():
            return "there is no GPU here that torch can use"
        return _what_is_missing(case) or self._what_does_not_fit(case)

    def _what_does_not_fit(self, case: Case) -> str:
        card = self.results.card_gib() if case.needs_gpu else None
        if card is not None and case.gib > card:
            return f"needs about {case.gib:g} GiB of the card, which has {card:.1f}"
        if self.left < case.seconds:
            return f"not run: it needs about {case.seconds:.0f} s, and less is left of --minutes"
        return ""

    def carry_out(self, case: Case) -> str:
        with self._alone(case):
            return self.carry_out_within(case, min(max(_LEAST_SECONDS, _PATIENCE * case.seconds), max(1.0, self.left)))

    @contextmanager
    def _alone(self, case: Case) -> Iterator[None]:
        """Two cases at once on a GPU would measure each other, whoever started them."""
        if not case.needs_gpu:
            yield
            return
        with (self.results.folder / "gpu.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _what_is_missing(case: Case) -> str:
    missing = [name for name in case.libraries if importlib.util.find_spec(name) is None]
    return f"{' and '.join(missing)} cannot be imported here" if missing else ""
