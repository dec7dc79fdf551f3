"""`python -m tests.truth`: recorded and predicted peaks side by side, and how many are the same to the byte."""

from __future__ import annotations

from tests.truth.comparison import Comparison, compare
from tests.truth.recordings import recordings


def line(result: Comparison) -> str:
    told, truth = result.predicted, result.recording.peaks
    pairs = ((truth.live, told.live), (truth.allocated, told.allocated), (truth.reserved, told.reserved))
    peaks = "  ".join(f"{one:>13,} {other:>13,}" for one, other in pairs)
    first = "same" if result.first_difference is None else f"differs at {result.first_difference}"
    return f"{result.recording.name:24}{peaks}  {result.equal_share:7.2%}  {first}"


def main() -> None:
    titles = "  ".join(f"{name + ', recorded':>19} predicted" for name in ("live", "allocated", "reserved"))
    print(f"{'recording':22}{titles}    equal  sizes in order")
    results = []
    for name in recordings():
        results.append(compare(name))
        print(line(results[-1]), flush=True)
    live, allocated, reserved = (sum(kinds) for kinds in zip(*(result.exact for result in results), strict=True))
    print(f"Exact of {len(results)}: live {live}, allocated {allocated}, reserved {reserved}.")


if __name__ == "__main__":
    main()
