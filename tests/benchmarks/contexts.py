"""CUDA memory outside PyTorch's allocator, by GPU generation: `python -m tests.benchmarks.contexts`.

The readings come from out-of-memory messages in public issues and logs: memory of the process on the GPU, less what
PyTorch had allocated and reserved. A reading above 1.5 times the median of its generation is of a program that holds
more than one PyTorch process does (several ranks of one job on a GPU, NCCL, libraries with their own allocator), and is
counted separately.
"""

import csv
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from tests.benchmarks.readme import write_table

_READINGS = Path(__file__).parent / "contexts.tsv"
_MIB_A_GIB = 1024
_STEP = 64
"""MiB: figures of two decimals of a GiB are no finer than some MiB each."""
_APART = 1.5


@dataclass(frozen=True)
class Seen:
    generation: str
    alone: tuple[float, ...]
    """MiB, ascending, of one process with PyTorch alone."""
    apart: tuple[float, ...]

    @property
    def least_mib(self) -> int:
        return int(self.alone[0] // _STEP * _STEP)

    @property
    def most_mib(self) -> int:
        return int(-(-self.alone[-1] // _STEP) * _STEP)


def seen() -> list[Seen]:
    readings: dict[str, list[float]] = {}
    with _READINGS.open(newline="") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            beside = (float(row["in_use_gib"]) - float(row["allocated_gib"])) * _MIB_A_GIB
            readings.setdefault(row["generation"], []).append(beside - float(row["unallocated_mib"]))
    return [_split(generation, sorted(values)) for generation, values in readings.items()]


def _split(generation: str, values: list[float]) -> Seen:
    most = _APART * median(values)
    return Seen(generation, tuple(v for v in values if v <= most), tuple(v for v in values if v > most))


def table() -> str:
    lines = ["| cards | readings | least, MiB | median, MiB | most, MiB | apart |", "|---|---|---|---|---|---|"]
    for each in seen():
        figures = (f"{value:,.0f}" for value in (each.alone[0], median(each.alone), each.alone[-1]))
        apart = ", ".join(f"{value:,.0f}" for value in each.apart)
        lines.append(f"| {each.generation} | {len(each.alone)} | {' | '.join(figures)} | {apart} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
    write_table("contexts", table())
