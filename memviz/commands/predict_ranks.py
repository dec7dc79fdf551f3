"""All ranks of a script: one process for each that has to run, and one line and file for each class of equal ones."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from memviz.commands.terminal import print_line
from memviz.errors import UsageError
from memviz.results.run import rank_list
from memviz.runner.record.recorded_script import sibling_path
from memviz.runner.record.recording import free_path
from memviz.units import bytes_text

if TYPE_CHECKING:
    from memviz.predictor.group.ranks import Layout

_MOST_AT_ONCE = 4
"""Processes; each may take a gigabyte or two."""
_UNUSED = 2
"""The exit status of a rank that ended well and did not use an `--assume`."""
_NAMED = ("card", "memory", "torch", "platform", "settings", "steps", "world_size", "outputs")
_REPEATED = {"optimizations": "--with", "set": "--set", "assume": "--assume", "assume_file": "--assume-file"}
_PEAKS = ("peak_requested_bytes", "peak_allocated_bytes", "peak_reserved_bytes")


@dataclass(frozen=True)
class PredictedRank:
    """The JSON that the process of a rank printed."""

    figures: dict[str, Any]

    @property
    def fingerprint(self) -> str:
        return str(self.figures["fingerprint"])

    @property
    def layout(self) -> Layout:
        from memviz.predictor.group.ranks import Layout

        return Layout.of_json(self.figures["layout"])


def predict_all_ranks(args: argparse.Namespace) -> int:
    from memviz.predictor.group.ranks import classes_of

    if args.world_size is None:
        raise UsageError("--rank all predicts the ranks of a group; say of how many with --world-size N.")
    if args.output is not None:
        # Of whichever class, the first rank is there.
        free_path(sibling_path(args.output, "rank0"), overwrite=args.overwrite)
    with TemporaryDirectory(prefix="memviz-ranks-") as folder:
        runs = _Runs(args, Path(folder))
        classes = classes_of(args.world_size, runs.predict)
        files = [_keep_snapshot(args, runs.file_of(ranks[0]), ranks[0]) for ranks, _ in classes]
    for (ranks, one), file in zip(classes, files, strict=True):
        print_line(_class_sentence(ranks, one.figures, file))
    runs.print_failure()
    if runs.unused:
        print_line(f"error: no line of any rank used --assume {', '.join(sorted(runs.unused))}")
    class_figures = [
        {"ranks": ranks, **{peak: one.figures[peak] for peak in _PEAKS}, "file": file}
        for (ranks, one), file in zip(classes, files, strict=True)
    ]
    _, highest = max(classes, key=lambda item: item[1].figures["peak_reserved_bytes"])
    print_line(f"ran {runs.count} of {args.world_size} ranks; the others take what one of these takes")
    if args.json:
        result = {**highest.figures, "rank": "all", "ran": runs.count, "classes": class_figures, "file": None}
        sys.stdout.write(json.dumps(result) + "\n")
    return max(_UNUSED if runs.unused else 0, *(int(one.figures["exit_status"]) for _, one in classes))


class _Runs:
    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        self._args = args
        self._folder = folder
        self.count = 0
        self._failed: dict[int, str] = {}
        """Messages of ranks whose program ended with an error of its own."""
        self.unused: set[str] | None = None
        """Lines of `--assume` that no rank used."""

    def file_of(self, rank: int) -> Path:
        name = self._args.output.name if self._args.output else "run.pickle"
        return self._folder / str(rank) / name

    def predict(self, ranks: Sequence[int]) -> list[PredictedRank]:
        self.count += len(ranks)
        at_once = min(_MOST_AT_ONCE, os.cpu_count() or 1)
        with ThreadPoolExecutor(at_once) as pool:
            return list(pool.map(self._predict, ranks))

    def _predict(self, rank: int) -> PredictedRank:
        command = [sys.executable, "-m", "memviz", "predict", *self._options(rank)]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
        lines = done.stdout.splitlines()
        figures = _figures_in(lines)
        if figures is None or done.returncode not in (0, figures["exit_status"]):
            raise UsageError(f"Rank {rank} could not be predicted:\n{done.stderr.strip()}")
        if figures["stopped"] is not None:
            raise UsageError(f"Rank {rank} stopped at {figures['stopped']['where']}: {figures['stopped']['what']}")
        unused = set(figures.get("unused_assume", ()))
        self.unused = unused if self.unused is None else self.unused & unused
        if unused and figures["exit_status"] == _UNUSED:
            # Another rank may use it.
            figures["exit_status"] = 0
        if figures["exit_status"]:
            self._failed[rank] = done.stderr.partition("\nmemviz: ")[0].strip()
        if rank == 0:
            sys.stdout.write("".join(f"{line}\n" for line in lines[:-1]))
            sys.stdout.flush()
        return PredictedRank(figures)

    def print_failure(self) -> None:
        """Print the error of the first rank that failed: equal ranks fail alike."""
        for rank in sorted(self._failed)[:1]:
            sys.stderr.write(f"{self._failed[rank]}\n")
            others = f", as {len(self._failed) - 1} more of those that ran" if len(self._failed) > 1 else ""
            print_line(f"rank {rank} ended with the error above{others}; the figures are those until there")

    def _options(self, rank: int) -> Iterator[str]:
        args = self._args
        for name in _NAMED:
            if getattr(args, name):
                yield from (f"--{name.replace('_', '-')}", str(getattr(args, name)))
        for name, option in _REPEATED.items():
            for value in getattr(args, name):
                yield from (option, value)
        yield from (["--continue"] if args.goes_beyond_card else [])
        yield from (["--holders"] if args.notes_holders else [])
        yield from (["--compile"] if args.compiles else [])
        yield from ("--rank", str(rank), "--json")
        if args.output:
            self.file_of(rank).parent.mkdir()
            yield from ("-o", str(self.file_of(rank)))
        yield from (["-m"] if args.module else [])
        yield from (args.script, *args.arguments)


def _figures_in(lines: Sequence[str]) -> dict[str, Any] | None:
    try:
        figures: dict[str, Any] = json.loads(lines[-1])
    except (IndexError, ValueError):
        return None
    return figures if "fingerprint" in figures else None


def _keep_snapshot(args: argparse.Namespace, source: Path, rank: int) -> str | None:
    if args.output is None:
        return None
    path = free_path(sibling_path(args.output, f"rank{rank}"), overwrite=args.overwrite)
    path.write_bytes(source.read_bytes())
    return str(path)


def _class_sentence(ranks: Sequence[int], figures: dict[str, Any], file: str | None) -> str:
    if figures.get("not_known") and not figures["peak_reserved_bytes"]:
        return f"{rank_list(ranks)}: not known, as {figures['not_known']}"
    live, reserved = (bytes_text(figures[name]) for name in ("peak_requested_bytes", "peak_reserved_bytes"))
    where = f", in {file}" if file else ""
    return f"{rank_list(ranks)}: live {live}, reserved {reserved} at most{where}"
