"""Processes that a predicted program starts, each predicted as a process of its own on the same kind of card.

Each new Python process finds `child_start/sitecustomize.py`, marks that it started, and is predicted from its import
of torch on. At its end it leaves its figures in a folder of the parent. One that leaves none, because it was killed or
still runs, is named, and the whole is not known. With the variables of torchrun it runs as that rank.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from memviz.predictor.compat import Patches
from memviz.predictor.group.ranks import GroupRank
from memviz.predictor.hooks import FOLLOWED_CHILDREN
from memviz.units import bytes_text

_START = Path(__file__).parent / "child_start"
_SERVANTS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
"""Processes that multiprocessing starts for itself."""
_LONGEST_COMMAND = 100


@dataclass(frozen=True)
class Child:
    command: str
    figures: Mapping[str, Any]
    """As `predict --json` prints them."""

    @property
    def card(self) -> int:
        """Number of its card: a rank of a group has one of its own."""
        rank, world_size = self.figures["rank"], self.figures["world_size"]
        return 0 if rank is None else GroupRank(rank, world_size).card

    @property
    def used_a_card(self) -> bool:
        return bool(self.figures["peak_reserved_bytes"] or self.figures["out_of_memory"])

    @property
    def expected_error(self) -> str:
        return str((self.figures["expected_error"] or {}).get("sentence", "The expected error is not known."))

    def sentence(self) -> str:
        figures, rank = self.figures, self.figures["rank"]
        which = "" if rank is None else f", rank {rank} of {figures['world_size']}"
        live, reserved = (bytes_text(figures[f"peak_{kind}_bytes"]) for kind in ("requested", "reserved"))
        verdict = {True: ", fits", False: ", does not fit", None: ""}[figures["fits"]]
        return f"`{self.command}`{which}: live {live} at the highest moment, reserved {reserved} at most{verdict}"


@dataclass(frozen=True)
class Children:
    predicted: tuple[Child, ...] = ()
    lost: tuple[str, ...] = ()
    """Commands of processes that imported torch and left no figures."""
    are_all: bool = False
    """True if every Python process that is known to have started was followed."""

    def __iter__(self) -> Iterator[Child]:
        return (child for child in self.predicted if child.used_a_card)

    @property
    def not_known(self) -> str:
        """Why what they take is not known; empty where it is, or where none was followed."""
        if self.lost:
            return f"`{self.lost[0]}`, which the program started, left no figures: it was killed, or still runs"
        reason = next((child for child in self.predicted if child.figures["not_known"]), None)
        return "" if reason is None else f"of `{reason.command}`: {reason.figures['not_known']}"


class ChildFolder:
    """Folder that the children leave their figures in."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def order(self) -> dict[str, Any]:
        """Settings of the prediction, as the parent wrote them."""
        order: dict[str, Any] = json.loads((self.path / "order.json").read_text(encoding="utf-8"))
        return order

    def collect(self, commands: Mapping[str, int]) -> Children:
        """`commands` are those that the parent itself is known to have started."""
        started = {mark.stem: json.loads(mark.read_text()) for mark in sorted(self.path.glob("*.started"))}
        known = Counter(commands)
        predicted, lost = [], []
        for mark, argv in started.items():
            file = self.path / f"{mark}.json"
            if file.exists():
                figures = json.loads(file.read_text(encoding="utf-8"))
                predicted.append(Child(command_text(argv), figures))
                known.update(figures["processes"])
            elif (self.path / f"{mark}.torch").exists():
                lost.append(command_text(argv))
        own = sum(not any(servant in word for word in argv for servant in _SERVANTS) for argv in started.values())
        return Children(tuple(predicted), tuple(lost), known.total() <= own)


def command_text(argv: list[str]) -> str:
    """Return a command as people know it, without the path of Python."""
    if any("multiprocessing.spawn" in word for word in argv):
        return "a process of multiprocessing"
    text = " ".join(" ".join((Path(argv[0]).name, *argv[1:])).split()) if argv else "python"
    return text if len(text) <= _LONGEST_COMMAND else f"{text[:_LONGEST_COMMAND]}..."


@contextmanager
def following_children(order: Mapping[str, Any]) -> Iterator[ChildFolder]:
    """Let processes that are started from now on be predicted with these settings."""
    with TemporaryDirectory(prefix="memviz-children-") as path, Patches() as patches:
        folder = ChildFolder(Path(path))
        (folder.path / "order.json").write_text(json.dumps(order), encoding="utf-8")
        variables = {
            FOLLOWED_CHILDREN: path,
            "PYTHONPATH": os.pathsep.join(filter(None, (str(_START), os.environ.get("PYTHONPATH")))),
        }
        for name, value in variables.items():
            patches.restore(os.environ, name)
            os.environ[name] = value
        yield folder


@dataclass
class ProcessEnd:
    """Exit status of this process, and the error that ended it."""

    status: int = 0
    error: BaseException | None = field(default=None, repr=False)

    def follow(self) -> None:
        shown, run = sys.excepthook, BaseProcess._bootstrap  # type: ignore[attr-defined]

        def show(kind: Any, error: Any, traceback: Any) -> None:
            self.status, self.error = 1, error
            shown(kind, error, traceback)

        def bootstrap(process: Any, *args: Any, **kwargs: Any) -> Any:
            self.status = int(run(process, *args, **kwargs) or 0)
            return self.status

        sys.excepthook = show
        BaseProcess._bootstrap = bootstrap  # type: ignore[attr-defined]
