"""Looks for files that the reader or an analysis does not take.

    python -m tests.hostile.fuzz --minutes 30        snapshots changed at random, guided by the code they reach

Findings are written to a folder; each becomes a case of this folder's tests once it is mended.
"""

from __future__ import annotations

import argparse
import random
import resource
import sys
import time
import traceback
from hashlib import blake2b
from pathlib import Path

from tests.hostile.edges import Edges
from tests.hostile.mutate import mutated
from tests.hostile.oracle import check
from tests.hostile.seeds import files

_ADDRESS_SPACE = 3 << 30
_SAY_SECONDS = 60.0
_MOST_KEPT = 3000
_LOOKED_AT_EVERY = 8
"""One in so many traces is also analysed, which takes far longer."""


class Fuzzer:
    def __init__(self, seed: int, findings: Path) -> None:
        self.luck = random.Random(seed)
        self.edges = Edges()
        self.findings = findings
        self.executions = 0
        self.traces = 0
        self.found: dict[str, int] = {}
        self.corpus = files()
        for each in list(self.corpus):
            self.execute(each)

    def step(self) -> None:
        # The newest have reached what nothing else did, so they are taken more often.
        newest = self.luck.random() < 0.3
        raw = self.luck.choice(self.corpus[-30:] if newest else self.corpus)
        made = mutated(raw, self.luck.choice(self.corpus), self.luck)
        if self.execute(made) and len(self.corpus) < _MOST_KEPT:
            self.corpus.append(made)

    def execute(self, raw: bytes) -> bool:
        self.executions += 1
        return self.edges.new_after(lambda: self._checked(raw))

    def _checked(self, raw: bytes) -> None:
        try:
            self.traces += check(raw, is_quick=self.executions % _LOOKED_AT_EVERY > 0)
        except Exception as error:
            self._keep(raw, error)

    def _keep(self, raw: bytes, error: Exception) -> None:
        """Save one input of each kind of error, by the line that raised it."""
        last = traceback.extract_tb(error.__traceback__)[-1]
        kind = f"{type(error).__name__} {Path(last.filename).name}:{last.lineno}"
        self.found[kind] = self.found.get(kind, 0) + 1
        if self.found[kind] == 1:
            self.findings.mkdir(parents=True, exist_ok=True)
            name = blake2b(raw, digest_size=6).hexdigest()
            (self.findings / name).write_bytes(raw)
            (self.findings / f"{name}.txt").write_text("".join(traceback.format_exception(error)), errors="replace")

    def said(self, seconds: float) -> str:
        return (
            f"{self.executions:,} executions ({self.executions / max(seconds, 1e-9):,.0f} a second), "
            f"{self.traces:,} of them traces; {len(self.edges.seen):,} edges "
            f"({self.edges.executions_watched:,} executions watched); {len(self.corpus):,} files kept; "
            f"findings: {self.found or 'none'}"
        )


def _fuzz(minutes: float, most: int | None, fuzzer: Fuzzer) -> int:
    started = said = time.monotonic()
    while time.monotonic() - started < 60 * minutes and (most is None or fuzzer.executions < most):
        fuzzer.step()
        if time.monotonic() - said > _SAY_SECONDS:
            said = time.monotonic()
            sys.stdout.write(fuzzer.said(said - started) + "\n")
            sys.stdout.flush()
    sys.stdout.write(fuzzer.said(time.monotonic() - started) + "\n")
    return 1 if fuzzer.found else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--executions", type=int, help="end earlier, after so many")
    parser.add_argument("--seed", type=int, default=None, help="the same seed gives the same files")
    parser.add_argument("--findings", type=Path, default=Path("fuzz-findings"))
    args = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE, _ADDRESS_SPACE))
    seed = random.randrange(2**32) if args.seed is None else args.seed
    sys.stdout.write(f"seed {seed}\n")
    return _fuzz(args.minutes, args.executions, Fuzzer(seed, args.findings))


if __name__ == "__main__":
    sys.exit(main())
