"""Many predictions of one script, each in a process of its own: all ranks of a group, or one for each of several cards.

Of ranks, those that have to run do, with one line and file for each class of equal ones.
"""

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
from typing import Any

from memviz.commands.terminal import print_line
from memviz.errors import UsageError
from memviz.predictor.cards import card_named, short_name
from memviz.predictor.group.ranks import Layout, classes_of
from memviz.results.run import rank_list
from memviz.runner.record.recorded_script import sibling_path
from memviz.runner.record.recording import free_path
from memviz.units import bytes_text

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
        return Layout.of_json(self.figures["layout"])


def predict_all_ranks(args: argparse.Namespace) -> int:
    if args.world_size is None:
        raise UsageError("--rank all needs the number of processes: add --world-size N.")
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
        print_line(f"error: no rank used --assume {', '.join(sorted(runs.unused))}")
    class_figures = [
        {"ranks": ranks, **{peak: one.figures[peak] for peak in _PEAKS}, "file": file}
        for (ranks, one), file in zip(classes, files, strict=True)
    ]
    _, highest = max(classes, key=lambda item: item[1].figures["peak_reserved_bytes"])
    print_line(f"ran {runs.count} of {args.world_size} ranks; each other rank equals one of these")
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
            others = f", as did {len(self._failed) - 1} more" if len(self._failed) > 1 else ""
            print_line(f"rank {rank} ended with the error above{others}; the figures are those up to the error")

    def _options(self, rank: int) -> Iterator[str]:
        yield from _options_of(self._args, _NAMED)
        yield from ("--rank", str(rank), "--json")
        if self._args.output:
            self.file_of(rank).parent.mkdir()
            yield from ("-o", str(self.file_of(rank)))
        yield from _program_of(self._args)


def _options_of(args: argparse.Namespace, names: Sequence[str]) -> Iterator[str]:
    """Yield options as they were given: those with one value by their names, and all lists and flags."""
    for name in names:
        if getattr(args, name):
            yield from (f"--{name.replace('_', '-')}", str(getattr(args, name)))
    for name, option in _REPEATED.items():
        for value in getattr(args, name):
            yield from (option, str(value))
    yield from (["--continue"] if args.goes_beyond_card else [])
    yield from (["--holders"] if args.notes_holders else [])
    yield from ([] if not args.compiles else ["--ideal-fusion"] if args.compiles == "ideal" else ["--compile"])


def _program_of(args: argparse.Namespace) -> list[str]:
    return [*(["-m"] if args.module else []), args.script, *args.arguments]


def _figures_in(lines: Sequence[str], key: str = "fingerprint") -> dict[str, Any] | None:
    try:
        figures: dict[str, Any] = json.loads(lines[-1])
    except (IndexError, ValueError):
        return None
    return figures if key in figures else None


def _keep_snapshot(args: argparse.Namespace, source: Path, rank: int) -> str | None:
    if args.output is None:
        return None
    path = free_path(sibling_path(args.output, f"rank{rank}"), overwrite=args.overwrite)
    path.write_bytes(source.read_bytes())
    return str(path)


def _class_sentence(ranks: Sequence[int], figures: dict[str, Any], file: str | None) -> str:
    if figures.get("not_known") and not figures["peak_reserved_bytes"]:
        return f"{rank_list(ranks)}: unknown: {figures['not_known']}"
    live, reserved = (bytes_text(figures[name]) for name in ("peak_requested_bytes", "peak_reserved_bytes"))
    where = f", in {file}" if file else ""
    return f"{rank_list(ranks)}: live {live}, reserved {reserved} at most{where}"


_OF_A_CARD = ("torch", "platform", "settings", "steps", "world_size", "rank", "host_memory")
_ALONE = {"memory": "--memory", "outputs": "--outputs", "write_assume": "--write-assume"}
_VERDICTS = {"yes": "fits", "close": "close", "no": "does not fit", None: "unknown"}


def predict_cards(args: argparse.Namespace, names: Sequence[str]) -> int:
    """Predict the script once for each card, whose kernels and limit differ, and print one line for each."""
    cards = [card_named(name).name for name in names]
    for name, option in _ALONE.items():
        if getattr(args, name):
            raise UsageError(f"{option} works with one card; --card names {len(cards)}.")
    if args.rank == "all" or args.gpus > 1:
        raise UsageError(f"--rank all and --gpus work with one card; --card names {len(cards)}.")
    files = [_file_of_card(args, short_name(card)) for card in cards]
    with ThreadPoolExecutor(min(_MOST_AT_ONCE, os.cpu_count() or 1)) as pool:
        done = list(pool.map(lambda card, file: _predict_card(args, card, file), names, files))
    sys.stdout.write("".join(f"{line}\n" for line in done[0][1]))
    width = max(len(short_name(card)) for card in cards)
    print_line(f"predicted for {len(cards)} cards, each with its own kernels and limit:")
    for card, (figures, _) in zip(cards, done, strict=True):
        print_line(f"  {short_name(card):<{width}}  {_card_sentence(figures)}")
    print_line("predict one of them alone to see assumptions and the expected error")
    if args.json:
        by_card = [figures for figures, _ in done]
        sys.stdout.write(json.dumps({**by_card[0], "by_card": by_card}) + "\n")
    return max(int(figures["exit_status"]) for figures, _ in done)


def _file_of_card(args: argparse.Namespace, card: str) -> Path | None:
    if args.output is None:
        return None
    return free_path(sibling_path(args.output, card.replace(" ", "-")), overwrite=args.overwrite)


def _predict_card(args: argparse.Namespace, card: str, file: Path | None) -> tuple[dict[str, Any], list[str]]:
    """Return the figures for a card and what the script printed."""
    options = [*_options_of(args, _OF_A_CARD), "--card", card, "--json"]
    options += ["-o", str(file), *(["--overwrite"] if args.overwrite else [])] if file else []
    return _predict_alone(args, card, options)


def predict_ideal_fusion(args: argparse.Namespace) -> dict[str, Any] | None:
    """Return the peaks of the lower bound of code under torch.compile; None where that cannot be had either."""
    ideal = argparse.Namespace(**{**vars(args), "compiles": "ideal"})
    options = [*_options_of(ideal, ("card", "memory", *_OF_A_CARD)), "--json"]
    figures, _ = _predict_alone(ideal, "Ideal fusion", options)
    return {name: figures[name] for name in _PEAKS} if figures["bound"] == "ideal fusion" else None


def _predict_alone(args: argparse.Namespace, card: str, options: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    command = [sys.executable, "-m", "memviz", "predict", *options, *_program_of(args)]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    lines = done.stdout.splitlines()
    figures = _figures_in(lines, "card")
    if figures is None:
        raise UsageError(f"{card} could not be predicted:\n{done.stderr.strip()}")
    if figures["exit_status"] and not figures["out_of_memory"]:
        sys.stderr.write(f"{done.stderr.strip()}\n")
    return figures, lines[:-1]


def _card_sentence(figures: dict[str, Any]) -> str:
    if figures["not_known"] and not figures["out_of_memory"]:
        return f"unknown: {figures['not_known']}"
    live, reserved = (bytes_text(figures[f"peak_{kind}_bytes"]) for kind in ("requested", "reserved"))
    if not figures["out_of_memory"]:
        return f"live {live}, reserved {reserved} at most: {_VERDICTS[figures['fit']]}"
    if figures["needs"] is None:
        return f"does not fit: ran out of memory with {live} live"
    return f"does not fit: needs {bytes_text(figures['needs']['reserved_bytes'])}"
