"""Processes that a predicted program starts, each predicted as a process of its own on the same kind of card.

Each new Python process finds `child_start/sitecustomize.py`, marks that it started, and is predicted from its import
of torch on. At its end it leaves its figures in a folder of the parent. One that leaves none, because it was killed or
still runs, is named, and the whole is not known. With the variables of torchrun it runs as that rank.
"""

from __future__ import annotations

import ast
import atexit
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from memviz.predictor.compat import Patches
from memviz.predictor.group.ranks import GroupRank, rank_of_environment
from memviz.predictor.hooks import FOLLOWED_CHILDREN
from memviz.units import bytes_text

if TYPE_CHECKING:
    from memviz.runner.predicted_script import ScriptOrder

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
    """Whether every Python process that is known to have started was followed."""

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

    def write_order(self, order: ScriptOrder) -> None:
        optimizations = [(change.name, _knobs(change)) for change in order.optimizations]
        assume = {place: repr(value) for place, value in order.assume.items()}
        texts = {"card": order.card, "torch": order.torch, "platform": order.platform, "settings": order.settings_text}
        told = {**texts, "steps": order.steps, "assume": assume, "optimizations": optimizations}
        (self.path / "order.json").write_text(json.dumps(told), encoding="utf-8")

    def read_order(self) -> ScriptOrder:
        from memviz.runner.plan import optimization_of
        from memviz.runner.predicted_script import ScriptOrder

        told = json.loads((self.path / "order.json").read_text(encoding="utf-8"))
        told["assume"] = {place: ast.literal_eval(value) for place, value in told["assume"].items()}
        told["optimizations"] = tuple(optimization_of(name, knobs) for name, knobs in told["optimizations"])
        return ScriptOrder(rank=rank_of_environment(os.environ), **told)

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


def _knobs(change: Any) -> dict[str, str]:
    return {name: str(value) for name, value in asdict(change).items()}


def command_text(argv: list[str]) -> str:
    """Return a command as people know it, without the path of Python."""
    if any("multiprocessing.spawn" in word for word in argv):
        return "a process of multiprocessing"
    text = " ".join(" ".join((Path(argv[0]).name, *argv[1:])).split()) if argv else "python"
    return text if len(text) <= _LONGEST_COMMAND else f"{text[:_LONGEST_COMMAND]}..."


@contextmanager
def following_children(order: ScriptOrder) -> Iterator[ChildFolder]:
    """Let processes that are started from now on be predicted as `order` says."""
    with TemporaryDirectory(prefix="memviz-children-") as path, Patches() as patches:
        folder = ChildFolder(Path(path))
        folder.write_order(order)
        variables = {
            FOLLOWED_CHILDREN: path,
            "PYTHONPATH": os.pathsep.join(filter(None, (str(_START), os.environ.get("PYTHONPATH")))),
        }
        for name, value in variables.items():
            patches.restore(os.environ, name)
            os.environ[name] = value
        yield folder


def begin(mark: Path) -> None:
    """Predict this process from now on: called in a child when it has imported torch."""
    from memviz.predictor.estimate import estimate_of
    from memviz.runner.predicted_script import (
        ModelChanges,
        OptimizerSteps,
        ScriptPrediction,
        device_of,
        script_json,
        stop_behind,
    )

    mark.with_suffix(".torch").touch()
    order = ChildFolder(mark.parent).read_order()
    device = device_of(order)
    changes = ModelChanges(order.optimizations, device.recorder.assumptions)
    stack = ExitStack()
    stack.enter_context(device)
    stack.enter_context(changes.following())
    steps = stack.enter_context(OptimizerSteps(order.steps))
    outcome = _Outcome()
    outcome.follow()
    process = os.getpid()

    def finish() -> None:
        if os.getpid() != process:
            # A fork, which shares the functions to call at the end.
            return
        trace = device.finish()
        estimate = estimate_of(device, trace, steps=steps.taken)
        stack.close()
        error = None if outcome.error is None else stop_behind(outcome.error)
        assumed = device.recorder.assumptions
        done = ScriptPrediction(
            outcome.status, estimate, error, changes.applied, assumed.unused, assumed.unused_sentence
        )
        unfinished = mark.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(script_json(done)), encoding="utf-8")
        unfinished.rename(mark.with_suffix(".json"))

    atexit.register(finish)


@dataclass
class _Outcome:
    """How the process ends."""

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
