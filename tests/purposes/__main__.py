"""`python -m tests.purposes [FOLDER]`: how much of real peaks has a purpose, and how much of known ones the right one.

Predictions are kept in FOLDER, so that a second run only reads them. Real files are those of `tests.real`, and
those named after the folder.
"""

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from memviz.analysis.timeline import timeline
from memviz.trace.load import load_trace
from tests.purposes.predictions import orders, predicted
from tests.purposes.scores import judged, told
from tests.purposes.stripped import Known, without_beginning, without_stacks
from tests.real import real_files

_LATE = 0.4
"""Share of events left out of a recording that begins late."""


def main(arguments: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory() as made_here:
        folder = Path(arguments[0]) if arguments else Path(made_here)
        folder.mkdir(parents=True, exist_ok=True)
        show_real([*real_files(), *map(Path, arguments[1:])])
        show_known(folder)


def show_real(paths: Sequence[Path]) -> None:
    print(f"{'real file':40} {'device':>6} {'peak MiB':>9} {'told':>6}  of what")
    shares = []
    for path in paths:
        trace = load_trace(path)
        for device in trace.devices:
            if not timeline(device).peak_bytes:
                continue
            result = told(trace, device)
            shares.append(result.share)
            kinds = ", ".join(f"{kind} {size / result.bytes:.0%}" for kind, size in result.by_kind.items())
            print(f"{path.stem[:40]:40} {device.name:>6} {result.bytes >> 20:9,} {result.share:6.1%}  {kinds}")
    if shares:
        print(f"Median of {len(shares)}: {median(shares):.1%} of the peak has a purpose.\n")


def show_known(folder: Path) -> None:
    titles = ("as it is", "late", "no stacks", "no stacks, late")
    print(f"{'known, right / wrong / wrong and sure':40}" + "".join(f"{title:>22}" for title in titles))
    print(f"{'':40}" + f"{'peak':>22}" * len(titles) + f"{'as it is, all bytes':>24}")
    rows = []
    for made in orders():
        known = predicted(made, folder)
        shown = [judged(variant, at_peak=True) for variant in variants(known)]
        shown.append(judged(known, at_peak=False))
        rows.append(shown)
        print(f"{made.name:40}" + "".join(f"{result.words:>22}" for result in shown))
    least = (f"{min(row[i].right for row in rows):.1%} right" for i in range(len(rows[0])))
    print(f"{'the least of ' + str(len(rows)):40}" + "".join(f"{words:>22}" for words in least))


def variants(known: Known) -> tuple[Known, ...]:
    bare = without_stacks(known)
    return known, without_beginning(known, _LATE), bare, without_beginning(bare, _LATE, stacks=True)


if __name__ == "__main__":
    main(sys.argv[1:])
