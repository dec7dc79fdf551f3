"""`python -m tests.truth`: recorded and predicted peaks side by side, and how many are the same to the byte.

With `--intervals` the stated intervals instead, from the shipped figures: how many peaks of a repository lie within
what all other repositories say of their class.
"""

import sys

from tests.truth.comparison import Comparison, compare
from tests.truth.intervals import classes, table
from tests.truth.recordings import recordings


def line(result: Comparison) -> str:
    told, truth = result.predicted, result.recording.peaks
    pairs = ((truth.live, told.live), (truth.allocated, told.allocated), (truth.reserved, told.reserved))
    peaks = "  ".join(f"{one:>14,} {other:>14,}" for one, other in pairs)
    first = "same" if result.first_difference is None else f"differs at {result.first_difference}"
    return f"{result.recording.name:32}{peaks}  {result.equal_share:7.2%}  {first}"


def main() -> None:
    if sys.argv[1:] == ["--intervals"]:
        print(table(classes()))
        return
    titles = "  ".join(f"{name + ', recorded':>19} {'predicted':>9}" for name in ("live", "allocated", "reserved"))
    print(f"{'recording':32}{titles}    equal  sizes in order")
    results = []
    for name in recordings():
        results.append(compare(name))
        print(line(results[-1]), flush=True)
    live, allocated, reserved = (sum(kinds) for kinds in zip(*(result.exact for result in results), strict=True))
    print(f"Exact of {len(results)}: live {live}, allocated {allocated}, reserved {reserved}.")


if __name__ == "__main__":
    main()
