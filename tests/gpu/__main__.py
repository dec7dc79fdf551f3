"""Everything that only a real GPU can tell, in one command.

    python -m tests.gpu -o OUT [--only capture,truth] [--minutes 8] [--small] [--write]

Needs torch with CUDA, numpy and, for most workloads, diffusers and transformers; nothing of the page. Each case has a
process of its own. OUT keeps what is done: the same command goes on where it stopped, also on another machine.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

from tests.gpu.case import Case
from tests.gpu.machine import has_gpu, known_outside
from tests.gpu.parts import PARTS, part_named
from tests.gpu.results import Results
from tests.gpu.rounds import Begin, Clock, Outcome, begin_in, one_by_one, several, why_not
from tests.gpu.sections import write_readme, write_samples
from tests.gpu.words import in_a_line

_MARKS = {"done": "  ok  ", "failed": "FAILED", "skipped": " skip "}


def main(line: list[str] | None = None) -> int:
    args = _arguments(line)
    results = Results(args.output.resolve())
    results.folder.mkdir(parents=True, exist_ok=True)
    gpu, known, clock = has_gpu(), known_outside(), Clock(args.minutes)
    if not gpu and not results.of("capture") and not results.of("seeds"):
        say("There is no GPU here that torch can use, and OUT holds nothing measured elsewhere: nothing to do.")
        return 2
    begin = begin_in(results.folder, known)
    outcomes: list[Outcome] = []
    for part in args.only:
        if part_named(part).NEEDS_GPU and not gpu:
            say(f"{part}: needs a GPU, and there is none here.")
            continue
        for each in _part(part, args, results, clock, begin):
            _tell(each, results)
            outcomes.append(each)
    _close(args, results, outcomes)
    return 1 if any(each.state == "failed" for each in outcomes) else 0


def _arguments(line: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="OUT", help="folder for all results")
    parser.add_argument("--only", type=_parts, default=PARTS, metavar="PART,...", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--case", default="*", metavar="NAME", help="only cases of this name; * and ? stand for others")
    parser.add_argument("--minutes", type=float, default=8, help="what does not fit is left out (default: %(default)s)")
    parser.add_argument("--small", action="store_true", help="a short round of every part")
    parser.add_argument("--again", action="store_true", help="also what is in OUT already")
    parser.add_argument("--write", action="store_true", help="fill the tables of tests/gpu/README.md")
    return parser.parse_args(line)


def _parts(text: str) -> tuple[str, ...]:
    wanted = [each.strip() for each in text.split(",") if each.strip()]
    unknown = [each for each in wanted if each not in PARTS]
    if unknown:
        raise argparse.ArgumentTypeError(f"there is no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    return tuple(each for each in PARTS if each in wanted)


def _part(part: str, args: argparse.Namespace, results: Results, clock: Clock, begin: Begin) -> Iterator[Outcome]:
    module = part_named(part)
    cases = [each for each in module.cases(results, small=args.small) if fnmatch(each.name, args.case)]
    wanted = [each for each in cases if args.again or results.result(part, each.name) is None]
    card = card_gib(results) if module.NEEDS_GPU else None
    possible: list[Case] = []
    for case in wanted:
        reason = why_not(case, card)
        if reason:
            yield Outcome(case, "skipped", reason)
        else:
            possible.append(case)
    at_once = min(module.AT_ONCE, max(1, (os.cpu_count() or 1) // 2))
    yield from one_by_one(possible, clock, begin) if module.NEEDS_GPU else several(possible, clock, begin, at_once)


def card_gib(results: Results) -> float | None:
    """As the first case found it; before that everything is tried."""
    found = (each["machine"].get("memory_bytes") for part in ("check", "capture") for each in results.of(part))
    sizes = [each for each in found if each]
    return sizes[0] / (1 << 30) if sizes else None


def _tell(outcome: Outcome, results: Results) -> None:
    case, words = outcome.case, outcome.words
    if outcome.state == "done":
        words = in_a_line(case.part, results.result(case.part, case.name) or {})
    first = (words.strip().splitlines() or [""])[0]
    say(f"{_MARKS[outcome.state]} {case.id:<42} {outcome.seconds:6.1f} s  {first}")


def _close(args: argparse.Namespace, results: Results, outcomes: list[Outcome]) -> None:
    counted = {state: sum(each.state == state for each in outcomes) for state in _MARKS}
    say(", ".join(f"{count} {state}" for state, count in counted.items()))
    if len(results.measured_on()) > 1:
        say(f"OUT mixes {' and '.join(sorted(results.measured_on()))}: keep one folder for each, or use --again.")
    table = write_samples(results)
    if table is not None:
        say(f"The samples' table is {table}.")
    if args.write:
        say(f"README.md has new tables: {', '.join(write_readme(results)) or 'none'}.")


def say(words: str) -> None:
    sys.stdout.write(f"{words}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
