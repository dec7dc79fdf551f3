"""Predict a program from Python, or an unmodified script as `python train.py` would run it.

Functions that a script registers with `atexit` run when it ends, because this process goes on. Those that libraries
register on import stay with the process: torch would take back operators that the next program needs.
"""

from __future__ import annotations

import ast
import atexit
import json
import os
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from multiprocessing.process import BaseProcess, active_children
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, Self
from weakref import WeakSet

import numpy as np
from torch import nn
from torch._C import _nn

from memviz.allocator.blocks import Platform
from memviz.allocator.context import DEFAULT_CARD
from memviz.allocator.replayer import FitWord
from memviz.allocator.settings import parse_settings
from memviz.errors import UsageError
from memviz.predictor.assumptions import (
    Assumptions,
    DataNeeded,
    Stopped,
    UnknownNumber,
    size_needed,
    stopped_by_interrupt,
)
from memviz.predictor.cards import card_named
from memviz.predictor.compat import Patches
from memviz.predictor.compiled import Compiles
from memviz.predictor.cuda.machine import on_card
from memviz.predictor.device import PredictedDevice
from memviz.predictor.estimate import Estimate, estimate_of
from memviz.predictor.group.ranks import GroupRank, rank_of_environment
from memviz.predictor.hooks import FOLLOWED_CHILDREN, EnoughSteps, OptimizerSteps, short_command
from memviz.predictor.ledger import live_changes
from memviz.predictor.outputs import FOLDERS, OutputFolder, output_folder
from memviz.predictor.position import is_installed, is_of_python
from memviz.runner.plan import changes_on_host, converts, label_of, optimization_of
from memviz.runner.record.recording import free_path
from memviz.runner.record.script import Script
from memviz.runner.request import parse_name_and_knobs, release_of
from memviz.trace.model import Events
from memviz.trace.write import replacing, write_pickle
from memviz.units import bytes_text
from optimizations import OPTIMIZATIONS, Optimization, apply_all, check_together
from optimizations.weight_offload import WeightOffload


class Predicting:
    """Result of `predicting`, with the estimate once the block is over."""

    def __init__(self, device: PredictedDevice) -> None:
        self.device = device
        self.estimate: Estimate | None = None

    def __repr__(self) -> str:
        return "<Predicting: not finished>" if self.estimate is None else repr(self.estimate)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if self.estimate is None:
            raise UsageError(f"There is no {name} before the `with` block ends.")
        return getattr(self.estimate, name)


@contextmanager
def predicting(
    card: str | None = None,
    *,
    torch: str = "",
    platform: Platform = "linux",
    settings: str | None = None,
    assume: Mapping[str, Any] | None = None,
    steps: int | None = None,
    world_size: int | None = None,
    rank: int = 0,
    goes_beyond_card: bool = False,
    holders: bool = False,
    compile: Compiles = False,
    gpus: int = 1,
) -> Iterator[Predicting]:
    """Run the block with a pretended CUDA device, which counts memory and computes nothing.

    Args:
        card: Which one, by a part of its name, as in "RTX 4090". It raises torch.cuda.OutOfMemoryError where it has
            no more; without one memory is not limited, kernels are chosen as for an RTX 4090, and `fits` has to be
            told a card.
        torch: The release whose kernels are followed, as in "2.6"; by default the installed one.
        platform: "linux", "wsl" or "windows": whose driver orders the addresses of segments.
        settings: As in PYTORCH_CUDA_ALLOC_CONF, which holds by default.
        assume: Answers where the program asks for values that are not computed, by line: {"train.py:12": 3.0}, by the
            order of its questions ("train.py:12#2") or by the variable that takes it ("train.py:loss"); several in a
            tuple are taken in turn.
        steps: After so many steps of an optimizer the block is over.
        world_size: Of a group of processes, as `torchrun` would say; the others are pretended.
        rank: Which of them runs here.
        goes_beyond_card: Where memory runs out, go on without a limit; `needs` says what the whole takes.
        holders: Find which variable, container or autograd graph keeps each allocation, at the begin of each backward,
            after each optimizer step and at the end. Where memory runs out that is found in any case.
        compile: Compile what the block gives to torch.compile, and predict the compiled code; "ideal" is the lower
            bound in which only inputs and results of its graphs are in memory.
        gpus: How many such cards the block has, cuda:0 and so on; `gpus` of the result has the estimate of each.

    Raises:
        DataNeeded: The program needs values that are not computed, and no natural answer is known.
        UsageError: A line of `assume` needed no value.
    """
    if world_size is None and rank:
        raise UsageError("rank needs the number of processes: pass world_size.")
    group_rank = None if world_size is None else GroupRank(rank, world_size)
    device = device_of(ScriptOrder(
        card, torch, platform, settings, steps, assume or {}, goes_beyond_card, notes_holders=holders, compiles=compile,
        gpus=gpus, rank=group_rank,
    ))  # fmt: skip
    done = Predicting(device)
    with device, OptimizerSteps(steps) as counted:
        try:
            yield done
        except EnoughSteps:
            pass
        finally:
            done.estimate = estimate_of(device, device.finish(), steps=counted.taken)
    if unused := device.recorder.assumptions.unused_sentence:
        raise UsageError(unused)


def predict(
    function: Callable[..., Any],
    *args: Any,
    card: str | None = None,
    torch: str = "",
    platform: Platform = "linux",
    settings: str | None = None,
    assume: Mapping[str, Any] | None = None,
    world_size: int | None = None,
    rank: int = 0,
    gpus: int = 1,
    **kwargs: Any,
) -> Estimate:
    """Predict the memory of `function(*args, **kwargs)` on a card, or several; its result is discarded."""
    context = predicting(
        card, torch=torch, platform=platform, settings=settings, assume=assume, world_size=world_size, rank=rank,
        gpus=gpus,
    )  # fmt: skip
    with context as predicted:
        function(*args, **kwargs)
    assert predicted.estimate is not None
    return predicted.estimate


def device_of(order: ScriptOrder) -> PredictedDevice:
    settings = order.settings_text
    return PredictedDevice(
        card_named(order.card or DEFAULT_CARD),
        settings=None if settings is None else parse_settings(settings),
        release=release_of(order.torch),
        platform=order.platform,
        assume=order.assume,
        limited=order.card is not None,
        rank=order.rank,
        as_process=True,
        goes_beyond_card=order.goes_beyond_card,
        notes_holders=order.notes_holders,
        compiles=order.compiles,
        gpus=order.gpus,
    )


class ExitFunctions(list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]]):
    """`atexit` functions of one program, with their arguments."""

    def run(self) -> None:
        """Run them, the last first; one that fails stops no other."""
        while self:
            function, args, kwargs = self.pop()
            try:
                function(*args, **kwargs)
            except (Exception, SystemExit) as error:
                sys.stderr.write(f"Exception ignored in atexit callback {function!r}:\n")
                traceback.print_exception(error)


@contextmanager
def exit_functions() -> Iterator[ExitFunctions]:
    """Collect the `atexit` functions that a program registers in this context."""
    parent, others = os.getpid(), set(active_children())

    def join_processes() -> None:
        """Wait for processes of multiprocessing as Python does at its end; `others` were there before."""
        for process in active_children() if os.getpid() == parent else ():
            if process not in others and not process.daemon:
                process.join()

    functions = ExitFunctions([(join_processes, (), {})])
    register, unregister = atexit.register, atexit.unregister

    def registered(func: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        code = sys._getframe(1).f_code
        is_import = code.co_name == "<module>"
        if is_of_python(code.co_filename) or (is_import and is_installed(code.co_filename)):
            register(func, *args, **kwargs)
        else:
            functions.append((func, args, kwargs))
        return func

    def unregistered(func: Callable[..., Any], /) -> None:
        functions[:] = [entry for entry in functions if entry[0] != func]
        unregister(func)

    with Patches() as patches:
        patches.replace(atexit, "register", registered)
        patches.replace(atexit, "unregister", unregistered)
        yield functions


def parse_optimizations(texts: Sequence[str], knobs: Sequence[tuple[str, str]]) -> tuple[Optimization, ...]:
    """Parse NAME:KNOB=VALUE texts; a knob that is set by itself applies to every optimization that has it."""
    having = {kind.name: {knob.name for knob in fields(kind)} for kind in OPTIMIZATIONS}  # type: ignore[arg-type]
    values_by_name = dict(map(parse_name_and_knobs, texts))
    for knob, value in knobs:
        names = [name for name in values_by_name if knob in having.get(name, ())]
        if not names:
            raise UsageError(f"--set {knob}={value}: no optimization of --with has this knob.")
        for name in names:
            values_by_name[name] = {**values_by_name[name], knob: value}
    by_name = {name: optimization_of(name, values) for name, values in values_by_name.items()}
    chosen = tuple(by_name[kind.name] for kind in OPTIMIZATIONS if kind.name in by_name)
    for change in chosen:
        if getattr(change, "changes_loop", False):
            raise UsageError(
                f"{change.name} changes a training loop, not a model. Change the script as its file describes."
            )
    try:
        check_together(chosen)
    except ValueError as error:
        raise UsageError(str(error)) from None
    return chosen


_parse_to: Any = _nn._parse_to


class ModelChanges:
    """Applies optimizations to each model once: when it moves to the device, or is first called there.

    Weights are cast, quantized or offloaded before the move, as people load them.
    """

    def __init__(self, optimizations: Sequence[Optimization], assumptions: Assumptions) -> None:
        # Settings of the environment are the device's own from the start.
        self._changes = [change for change in optimizations if not change.environment]
        self._assumptions = assumptions
        self._seen: WeakSet[nn.Module] = WeakSet()
        self._within = False
        self.applied: dict[str, list[str]] = {change.name: [] for change in self._changes}
        """Classes of the models that each changed."""

    @contextmanager
    def following(self) -> Iterator[None]:
        with Patches() as patches:
            if self._changes:
                for name in ("to", "cuda", "to_empty"):
                    patches.replace(nn.Module, name, self._moved(name, getattr(nn.Module, name)))
                patches.replace(nn.Module, "__call__", self._called(nn.Module.__call__))
            yield

    def _moved(self, name: str, move: Any) -> Any:
        def moved(model: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if self._within:
                return move(model, *args, **kwargs)
            to_card, dtype = name == "cuda", None
            if name == "to":
                # The pretended card is torch's meta device.
                device, dtype, *_ = _parse_to(*args, **kwargs)
                to_card = device is not None and device.type in ("cuda", "meta")
            self._within = True
            try:
                done = self._load(model, move, to_card, dtype)
                if not done:
                    move(model, *args, **kwargs)
            finally:
                self._within = False
            self._arrived(model, done)
            return model

        return moved

    def _load(self, model: nn.Module, move: Any, to_card: bool, dtype: Any) -> set[str]:
        """Convert weights that are in host memory, and move the rest; return the changes that had their turn."""
        weight = next(nn.Module.parameters(model), None)
        if weight is None or model in self._seen or not to_card or on_card(weight):
            return set()
        offloads = [replace(one, onload_device="cuda") for one in self._changes if isinstance(one, WeightOffload)]
        early = [*changes_on_host(self._changes), *offloads]
        if early and dtype is not None:
            move(model, dtype=dtype)
        done = [change for change in early if self._apply(model, change)]
        if early and not any(change in offloads for change in done):
            move(model, "cuda")
        return {change.name for change in early}

    def _called(self, call: Any) -> Any:
        def called(model: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if self._within:
                return call(model, *args, **kwargs)
            self._arrived(model)
            self._within = True
            try:
                return call(model, *args, **kwargs)
            finally:
                self._within = False

        return called

    def _arrived(self, model: nn.Module, done: Collection[str] = ()) -> None:
        weight = next(nn.Module.parameters(model), None)
        if weight is None or model in self._seen or not (done or on_card(weight)):
            return
        self._seen.update(nn.Module.modules(model))
        for change in self._changes:
            if change.name not in done and self._apply(model, change) and converts(change):
                self._assumptions.say(
                    f"the script moves {type(model).__name__} to the card before {label_of((change,))} is applied, "
                    "so the peak includes its full weights"
                )

    def _apply(self, model: nn.Module, change: Optimization) -> bool:
        try:
            change.check(model, training=model.training)
            apply_all(model, [change])
        except ValueError as error:
            self._assumptions.say(f"{label_of((change,))} was not applied to {type(model).__name__}: {error}")
            return False
        self.applied[change.name].append(type(model).__name__)
        return True


UNUSED = 2
"""Exit status for an answer to a line that reads no value, as for every usage error."""
NOT_KNOWN = 4
"""Exit status of a program that ended well while only other processes used the card."""
INTERRUPTED = 128 + signal.SIGINT
_ONLY_OWN = "not predicted. Predict the script of the other process, with --world-size N for several"
_NO_MEMORY = "allocated no GPU memory"
_STARTED_OTHERS = f"the main process {_NO_MEMORY} and started other processes, which are {_ONLY_OWN}"


# Processes that the program starts. Each new Python process finds `child_start/sitecustomize.py`, marks that it began,
# and is predicted from its import of torch on. At its end it leaves its figures in a folder of the parent. One that
# leaves none, because it was killed or still runs, is named, and the whole is not known. With the variables of torchrun
# it runs as that rank.

_START = Path(__file__).parent / "child_start"
_ORDER = "order.json"
"""File with the settings of the prediction, as the parent wrote them."""
_SERVANTS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
"""Processes that multiprocessing starts for itself."""


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
        return str((self.figures["expected_error"] or {}).get("sentence", "The expected error is unknown."))

    def sentence(self) -> str:
        figures, rank = self.figures, self.figures["rank"]
        which = "" if rank is None else f", rank {rank} of {figures['world_size']}"
        live, reserved = (bytes_text(figures[f"peak_{kind}_bytes"]) for kind in ("requested", "reserved"))
        verdict = {True: ", fits", False: ", does not fit", None: ""}[figures["fits"]]
        return f"`{self.command}`{which}: live {live} at the peak, reserved {reserved} at most{verdict}"


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
            return f"`{self.lost[0]}`, a child process, reported no figures: it was killed, or still runs"
        for child in self.predicted:
            reason = child.figures["not_known"]
            if not (reason or self.are_all or child.used_a_card) and child.figures["processes"]:
                reason = _STARTED_OTHERS
            if reason:
                return f"of `{child.command}`: {reason}"
        return ""


def collect_children(folder: Path, commands: Mapping[str, int]) -> Children:
    """`commands` are those that the parent itself is known to have started."""
    started = {mark.stem: json.loads(mark.read_text()) for mark in sorted(folder.glob("*.started"))}
    known = Counter(commands)
    predicted, lost = [], []
    for mark, argv in started.items():
        file = folder / f"{mark}.json"
        if file.exists():
            figures = json.loads(file.read_text(encoding="utf-8"))
            predicted.append(Child(command_text(argv), figures))
            known.update(figures["processes"])
        elif (folder / f"{mark}.torch").exists():
            lost.append(command_text(argv))
    own = sum(not any(servant in word for word in argv for servant in _SERVANTS) for argv in started.values())
    return Children(tuple(predicted), tuple(lost), known.total() <= own)


def command_text(argv: list[str]) -> str:
    """Return a command as people know it, without the path of Python."""
    if any("multiprocessing.spawn" in word for word in argv):
        return "a multiprocessing process"
    return short_command(" ".join((Path(argv[0]).name, *argv[1:]))) if argv else "python"


@contextmanager
def following_children(order: Mapping[str, Any], outputs: OutputFolder) -> Iterator[Path]:
    """Let processes that are started from now on be predicted with these settings, and leave figures in a folder."""
    with TemporaryDirectory(prefix="memviz-children-") as path, Patches() as patches:
        Path(path, _ORDER).write_text(json.dumps(order), encoding="utf-8")
        variables = {
            FOLLOWED_CHILDREN: path,
            FOLDERS: outputs.as_variable(),
            "PYTHONPATH": os.pathsep.join(filter(None, (str(_START), os.environ.get("PYTHONPATH")))),
        }
        for name, value in variables.items():
            patches.restore(os.environ, name)
            os.environ[name] = value
        yield Path(path)


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


@dataclass(frozen=True)
class ScriptOrder:
    card: str | None = None
    torch: str = ""
    platform: Platform = "linux"
    settings: str | None = None
    steps: int | None = None
    assume: Mapping[str, Any] = field(default_factory=dict)
    goes_beyond_card: bool = False
    """If memory runs out, continue without a limit."""
    notes_holders: bool = False
    """Find what holds each allocation."""
    compiles: Compiles = False
    """Compile what the script gives to torch.compile."""
    gpus: int = 1
    """Cards of each process, but of a rank."""
    output: Path | None = None
    overwrite: bool = False
    outputs: Path | None = None
    """Folder for the files that the script writes; None removes them at the end."""
    rank: GroupRank | None = None
    """Which process of a group it runs as."""
    optimizations: tuple[Optimization, ...] = ()
    """Applied to the script's models as they reach the device."""

    def as_json(self) -> dict[str, Any]:
        """Return what holds for the processes that the script starts too."""
        knobs: dict[str, Any] = {}
        for change in self.optimizations:
            named: Any = change
            knobs[change.name] = {name: str(value) for name, value in asdict(named).items()}
        texts = {"card": self.card, "torch": self.torch, "platform": self.platform, "settings": self.settings_text}
        assume = {place: repr(value) for place, value in self.assume.items()}
        names = ("steps", "goes_beyond_card", "notes_holders", "compiles", "gpus")
        return {**texts, **{name: getattr(self, name) for name in names}, "assume": assume, "optimizations": knobs}

    @classmethod
    def of_json(cls, told: dict[str, Any]) -> Self:
        assume = {place: ast.literal_eval(value) for place, value in told["assume"].items()}
        changes = tuple(optimization_of(name, knobs) for name, knobs in told["optimizations"].items())
        rank = rank_of_environment(os.environ)
        own = {"assume": assume, "optimizations": changes, "rank": rank, "gpus": told["gpus"] if rank is None else 1}
        return cls(**{**told, **own})

    @property
    def settings_text(self) -> str | None:
        """Allocator settings of the order, else of an optimization."""
        texts = [text for change in self.optimizations for text in change.environment.values()]
        return texts[0] if self.settings is None and texts else self.settings


class CellPeak(NamedTuple):
    """Requested bytes: the highest while a cell of a notebook ran, and those that were live at its end."""

    number: int
    peak_requested_bytes: int
    end_requested_bytes: int


def cell_peaks(events: Events, ends: Sequence[int]) -> tuple[CellPeak, ...]:
    """`ends` are the numbers of events after each cell."""
    live = np.append(0, np.cumsum(live_changes(events.action, events.size)))
    begins = (0, *ends[:-1])
    windows = (live[begin : end + 1] for begin, end in zip(begins, ends, strict=True))
    return tuple(CellPeak(number, int(part.max()), int(part[-1])) for number, part in enumerate(windows, 1))


@dataclass(frozen=True)
class ScriptPrediction:
    exit_status: int
    estimate: Estimate
    stopped: Stopped | None = None
    """Why it could not go on to its end."""
    applied: Mapping[str, list[str]] = field(default_factory=dict)
    """Optimizations, and the classes of the models that each changed."""
    unused_assume: tuple[str, ...] = ()
    """Lines with a stated answer that read no value."""
    unused_sentence: str = ""
    """Names the unused answers, and the questions that could have been meant."""
    assume: tuple[str, ...] = ()
    """Answers that the program got, as lines of `--assume-file`."""
    children: Children = field(default_factory=Children)
    """Processes that the program started."""
    cells: tuple[CellPeak, ...] = ()
    """Peaks of the cells of a notebook, as far as it ran."""
    skipped: tuple[str, ...] = ()
    """Commands of Jupyter, which did not run."""
    files: int = 0
    """Files that the program wrote and that were kept apart."""
    outputs: Path | None = None
    """Folder with these files; None if they were removed."""
    is_status_ours: bool = False
    """True if the program ended well, so that the exit status reports its answers."""

    @property
    def not_known(self) -> str:
        """Why the peaks are not those of the whole program; empty where they are."""
        if self.stopped is not None:
            return f"the program was stopped at {self.stopped.where or 'an unknown line'}"
        if self.children.not_known:
            return self.children.not_known
        if self.estimate.children_used_the_card:
            return f"a fork of the program used the card, which is {_ONLY_OWN}"
        failed = self.exit_status and not self.is_status_ours
        if failed and not self._used_a_card:
            return f"the program {_NO_MEMORY} before it ended with exit status {int(self.exit_status)}"
        if not self.estimate.peak_reserved and self.estimate.commands:
            return _STARTED_OTHERS
        if failed:
            place = self.assume[-1].rpartition("=")[0] if self.assume else ""
            hint = f". If an assumed value caused the error, state it: --assume {place}=VALUE" if place else ""
            ended = f"the program ended with exit status {int(self.exit_status)}"
            return f"{ended}, and only memory until then is counted{hint}"
        return ""

    @property
    def _used_a_card(self) -> bool:
        return self.estimate.peak_reserved > 0 or self.estimate.out_of_memory > 0

    @property
    def fits(self) -> bool | None:
        """True if each process fits the named card, and together where several share one.

        None without a card, if the program ended too early, or where their peaks fit a shared card apart only.
        """
        if self.stopped is not None or not self.estimate.limited:
            return None
        own = [self.estimate.fits()] if self._used_a_card or not list(self.children) else []
        verdicts = [*own, *(child.figures["fits"] for child in self.children)]
        if False in verdicts:
            return False
        # All peaks on a card have to fit it at once, each with a context of its own.
        card, context = self.estimate.card, self.estimate.context.most_bytes
        together = (peaks + count * context <= card.memory_bytes for _, count, peaks in self.shared_cards())
        return None if self.not_known or None in verdicts or not all(together) else True

    @property
    def fit_word(self) -> FitWord | None:
        if list(self.children):
            return None if self.fits is None else "yes" if self.fits else "no"
        return None if self.fits is None else self.estimate.fit_word()

    def shared_cards(self) -> list[tuple[int, int, int]]:
        """Return each card that several processes use: its number, how many they are, and the sum of their peaks."""
        own = self.estimate.gpus or (self.estimate,)
        processes = [(one.gpu, one.peak_reserved) for one in own if one.peak_reserved or one.out_of_memory]
        for child in self.children:
            gpus = child.figures.get("gpus", [{"gpu": child.card, **child.figures}])
            processes += [(one["gpu"], one["peak_reserved_bytes"]) for one in gpus if one["peak_reserved_bytes"]]
        reserved: dict[int, list[int]] = {}
        for card, peak in processes:
            reserved.setdefault(card, []).append(peak)
        return [(card, len(peaks), sum(peaks)) for card, peaks in reserved.items() if len(peaks) > 1]


def _answers_of(device: PredictedDevice) -> tuple[tuple[str, ...], str, tuple[str, ...]]:
    """Return the user's answers that were not used, the sentence on them, and the answers of the run."""
    assumed = device.recorder.assumptions
    return assumed.unused, assumed.unused_sentence, tuple(assumed.questions.answers())


def _without_commands(estimate: Estimate) -> Estimate:
    return replace(estimate, commands={}, gpus=tuple(replace(one, commands={}) for one in estimate.gpus))


def predict_script(
    script: Script, order: ScriptOrder, tell: Callable[[str], None] = lambda text: None
) -> ScriptPrediction:
    """Run a script and its exit functions to the end, then write the snapshot."""
    if order.output is not None:
        free_path(order.output, overwrite=order.overwrite)
    device = device_of(order)
    changes = ModelChanges(order.optimizations, device.recorder.assumptions)
    process = os.getpid()
    with (
        output_folder(order.outputs, script.folder) as outputs,
        device,
        following_children(order.as_json(), outputs) as folder,
        exit_functions() as at_exit,
        changes.following(),
        OptimizerSteps(order.steps, lambda count: tell(f"{count} steps" if count > 1 else "1 step")) as steps,
    ):
        cards, ends = device.recorder.ledger.cards, list[list[int]]()
        status, stopped = _run_script(script, at_exit, lambda: ends.append([len(card.history) for card in cards]))
        if os.getpid() != process:
            # A fork of the program, at its end.
            sys.stdout.flush()
            os._exit(status)
        trace = device.finish()
        estimate = estimate_of(device, trace, steps=steps.taken)
        children = collect_children(folder, estimate.commands)
        files = outputs.close(), order.outputs
    if children.are_all:
        estimate = _without_commands(estimate)
    if order.output is not None:
        with replacing(order.output) as file:
            write_pickle(trace, file)
    own, answers = estimate.gpu, _answers_of(device)
    cells = cell_peaks(trace.devices[own].events, [end[own] for end in ends]) if script.is_notebook else ()
    done = ScriptPrediction(
        status, estimate, stopped, changes.applied, *answers, children, cells, script.skipped, *files
    )
    if status or not (done.not_known or done.unused_assume):
        return done
    return replace(done, exit_status=UNUSED if done.unused_assume else NOT_KNOWN, is_status_ours=True)


def predict_child(mark: Path) -> None:
    """Predict this process from now on: called in a child of a predicted program when it has imported torch."""
    mark.with_suffix(".torch").touch()
    order = ScriptOrder.of_json(json.loads((mark.parent / _ORDER).read_text(encoding="utf-8")))
    device = device_of(order)
    changes = ModelChanges(order.optimizations, device.recorder.assumptions)
    stack = ExitStack()
    stack.enter_context(device)
    stack.enter_context(changes.following())
    steps = stack.enter_context(OptimizerSteps(order.steps))
    end = ProcessEnd()
    end.follow()
    process = os.getpid()

    def finish() -> None:
        if os.getpid() != process:
            # A fork, which shares the functions to call at the end.
            return
        trace = device.finish()
        estimate = estimate_of(device, trace, steps=steps.taken)
        stack.close()
        error = None if end.error is None else stop_behind(end.error)
        # The parent of all knows whether those that this process started were followed.
        alone = _without_commands(estimate)
        done = ScriptPrediction(end.status, alone, error, changes.applied, *_answers_of(device))
        figures = {**script_json(done), "processes": dict(estimate.commands)}
        unfinished = mark.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(figures), encoding="utf-8")
        unfinished.rename(mark.with_suffix(".json"))

    atexit.register(finish)


def _run_script(script: Script, at_exit: ExitFunctions, ended: Callable[[], None]) -> tuple[int, Stopped | None]:
    try:
        script.run_to_its_end(ended)
        status = 0
    except SystemExit as error:
        # As Python does: None is 0, and anything but a number is printed.
        code = error.code
        if code is not None and not isinstance(code, int):
            sys.stderr.write(f"{code}\n")
            code = 1
        status = code or 0
    except KeyboardInterrupt as error:
        at_exit.run()
        return INTERRUPTED, stopped_by_interrupt(error)
    except BaseException as error:
        stopped = stop_behind(error)
        if stopped is not None:
            stopped.was_not_caught()
            return stopped.exit_status, stopped
        script.show(error)
        status = 1
    at_exit.run()
    return status, None


def stop_behind(error: BaseException | None) -> Stopped | None:
    """Find what stopped the program behind errors of libraries."""
    while error is not None:
        if isinstance(error, Stopped):
            return error
        if isinstance(error, TypeError) and UnknownNumber.__name__ in str(error):
            # torch's message names only a size of the wrong type.
            return size_needed(error)
        error = error.__cause__ or error.__context__
    return None


def _gpu_json(estimate: Estimate) -> dict[str, Any]:
    """Figures of one card of several."""
    return {
        "gpu": estimate.gpu,
        "peak_requested_bytes": estimate.peak_requested,
        "peak_allocated_bytes": estimate.peak_allocated,
        "peak_reserved_bytes": estimate.peak_reserved,
        "fits": estimate.fits() if estimate.limited else None,
        "fit": estimate.fit_word() if estimate.limited else None,
        "out_of_memory": estimate.out_of_memory,
        "needs": None if estimate.needs is None else estimate.needs._asdict(),
        "by_category": estimate.by_category(),
    }


def script_json(done: ScriptPrediction, output: Path | None = None) -> dict[str, Any]:
    estimate, stopped, is_complete = done.estimate, done.stopped, not done.not_known
    assume = stopped.assume if isinstance(stopped, DataNeeded) else ""
    return {
        "card": estimate.card.name,
        "torch": estimate.torch,
        "platform": estimate.platform,
        "exit_status": done.exit_status,
        "not_known": done.not_known or None,
        "rank": None if estimate.rank is None else estimate.rank.number,
        "world_size": None if estimate.rank is None else estimate.rank.world_size,
        "bound": estimate.bound or None,
        "peak_requested_bytes": estimate.peak_requested,
        "peak_allocated_bytes": estimate.peak_allocated,
        "peak_reserved_bytes": estimate.peak_reserved,
        "peak_host_bytes": estimate.peak_host,
        "peak_reserved_on_card_bytes": estimate.peak_reserved_on_card,
        "peak_reserved_without_limit_bytes": estimate.peak_reserved_without_limit,
        "fits": done.fits,
        "fit": done.fit_word,
        "cards": estimate.common_fits() if is_complete and not estimate.limited else None,
        "context": estimate.context.as_json() if estimate.limited else None,
        "expected_error": estimate.expected_error.as_json() if is_complete else None,
        "out_of_memory": estimate.out_of_memory,
        "needs": None if estimate.needs is None or not is_complete else estimate.needs._asdict(),
        "steps": estimate.steps,
        "by_category": estimate.by_category(),
        **({"gpus": [_gpu_json(one) for one in estimate.gpus]} if estimate.gpus else {}),
        "cells": [cell._asdict() for cell in done.cells],
        "skipped": list(done.skipped),
        "processes": dict(estimate.commands),
        "children": [{"command": child.command, **child.figures} for child in done.children],
        "windows": [asdict(window) for window in estimate.windows],
        "assumed": [stated.as_json() for stated in estimate.assumed],
        "assume": list(done.assume),
        "notes": list(estimate.notes),
        "warnings": list(estimate.warnings),
        "unproven": [asdict(one) for one in estimate.unproven],
        **({} if estimate.rank is None else {"fingerprint": estimate.fingerprint, "layout": estimate.layout.as_json()}),
        "optimizations": {name: list(models) for name, models in done.applied.items()},
        "file": None if output is None else str(output),
        "outputs": {"files": done.files, "folder": None if done.outputs is None else str(done.outputs)},
        "unused_assume": list(done.unused_assume),
        "stopped": None if stopped is None else {"where": stopped.where, "what": stopped.what, "assume": assume},
    }
