"""`python -m tests.purposes [FOLDER]`: how much of real peaks has a purpose, and how much of known ones the right one.

Known purposes are those of predicted traces: their labels are taken away, and then their stacks or their beginning.
Predictions are kept in FOLDER, so that a second run only reads them. Real files are those of `tests.real`, and
those named after the folder.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np

from memviz.analysis.lifetimes import lifetimes, live_rows
from memviz.analysis.purpose.categories import KINDS, SAYS_NOTHING, categories, kinds
from memviz.analysis.purpose.phases import label_of_rows
from memviz.analysis.sums import sum_by
from memviz.analysis.timeline import timeline
from memviz.trace.load import load_trace
from memviz.trace.model import NO_STACK, Annotations, Bytes1, Category, DeviceTrace, Events, Trace
from tests.real import real_files


@dataclass(frozen=True)
class Known:
    """A trace without labels, and the true purpose of its allocations."""

    name: str
    trace: Trace
    device: DeviceTrace
    truth: Bytes1
    """A Category per row of `lifetimes`."""


def without_labels(name: str, trace: Trace, device: DeviceTrace) -> Known:
    truth = label_of_rows(device, "category")
    assert truth is not None, "this trace has no labels to strip"
    bare = replace(device, event_labels=None, block_labels=None, annotations=Annotations.empty())
    return Known(name, replace(trace, devices=(bare,)), bare, truth.astype(np.uint8))


def without_stacks(known: Known) -> Known:
    """Sizes and order are all that is left."""
    events, blocks = known.device.events, known.device.blocks
    none = np.full(len(events), NO_STACK, dtype=np.int32)
    bare = replace(
        known.device,
        events=replace(events, stack=none, forward_stack=none.copy()),
        blocks=replace(blocks, stack=np.full(len(blocks), NO_STACK, dtype=np.int32)),
    )
    return Known(f"{known.name}, no stacks", replace(known.trace, devices=(bare,)), bare, known.truth)


def without_beginning(known: Known, share: float, *, stacks: bool = False) -> Known:
    """Cut the first events, like a recording started late: allocations live then have no stack either."""
    device, events = known.device, known.device.events
    skipped = int(len(events) * share)
    later = Events(**{name: column[skipped:] for name, column in events.columns()})
    late = replace(device, events=later)
    if not stacks:
        late = replace(late, blocks=replace(late.blocks, stack=_of_blocks_made_since(device, skipped)))
    rows = lifetimes(device)
    places = dict(zip(zip(rows.address.tolist(), rows.end.tolist(), strict=True), known.truth.tolist(), strict=True))
    left = lifetimes(late)
    keys = zip(left.address.tolist(), (left.end + skipped).tolist(), strict=True)
    truth = np.array([places[key] for key in keys], dtype=np.uint8)
    return Known(f"{known.name}, late", replace(known.trace, devices=(late,)), late, truth)


def _of_blocks_made_since(device: DeviceTrace, event: int) -> np.ndarray:
    rows, stacks = lifetimes(device), device.blocks.stack.copy()
    old = rows.block[(rows.block >= 0) & (rows.start < event)]
    stacks[old] = NO_STACK
    return stacks


@dataclass(frozen=True)
class Told:
    """Bytes at the peak, by kind of purpose."""

    bytes: int
    by_kind: dict[str, int]

    @property
    def share(self) -> float:
        nothing = sum(self.by_kind.get(kind, 0) for kind in SAYS_NOTHING)
        return 1 - nothing / self.bytes if self.bytes else 0.0


@dataclass(frozen=True)
class Judged:
    """Shares of the bytes whose purpose is known."""

    right: float
    wrong: float
    confidently_wrong: float

    @property
    def words(self) -> str:
        return f"{self.right:.1%} {self.wrong:.1%} {self.confidently_wrong:.1%}"


def told(trace: Trace, device: DeviceTrace) -> Told:
    rows = live_rows(device, timeline(device).peak_event)
    sums = sum_by(kinds(trace, device, rows), lifetimes(device).size[rows], len(KINDS))
    by_kind = {KINDS[code]: int(sums[code]) for code in np.argsort(-sums) if sums[code]}
    return Told(int(sums.sum()), by_kind)


def judged(known: Known, *, at_peak: bool) -> Judged:
    """Score the categories of the allocations live at the peak, or of all allocations."""
    rows = np.arange(len(known.truth))
    if at_peak:
        rows = live_rows(known.device, timeline(known.device).peak_event)
    rows = rows[known.truth[rows] != Category.UNKNOWN]
    found = categories(known.trace, known.device)
    size, said, truth = lifetimes(known.device).size[rows], found.category[rows], known.truth[rows]
    total = max(int(size.sum()), 1)
    wrong = (said != truth) & (said != Category.UNKNOWN)
    return Judged(
        right=int(size[said == truth].sum()) / total,
        wrong=int(size[wrong].sum()) / total,
        confidently_wrong=int(size[wrong & found.sure[rows]].sum()) / total,
    )


_LIMIT_S = 600
TRAINED = ("feed_forward", "ltx_video", "flux", "cogvideox", "gpt2", "llama")
_CHECKPOINTING = ("--with", "checkpointing")


@dataclass(frozen=True)
class Made:
    name: str
    arguments: tuple[str, ...]


def orders() -> Iterator[Made]:
    for workload in TRAINED:
        training = (workload, "--set", "mode=training")
        yield Made(f"{workload} inference", (workload, "--set", "mode=inference"))
        yield Made(f"{workload} training", training)
        yield Made(f"{workload} AdamW", (*training, "--optimizer", "adamw"))
    for workload in ("gpt2", "llama"):
        yield Made(f"{workload} with cache", (workload, "--set", "mode=inference", "--set", "cache=true"))
    yield Made("gpt2 SGD", ("gpt2", "--optimizer", "sgd"))
    yield Made("gpt2 AdamW in a loop", ("gpt2", "--optimizer", "adamw-for-loop"))
    yield Made("llama fused AdamW", ("llama", "--optimizer", "adamw-fused"))
    yield Made("gpt2 micro-batches", ("gpt2", "--optimizer", "adamw", "--set", "micro_batches=2"))
    yield Made("gpt2 checkpointed", ("gpt2", "--optimizer", "adamw", *_CHECKPOINTING))
    yield Made("ltx_video checkpointed", ("ltx_video", *_CHECKPOINTING))
    yield Made("transformer_block", ("transformer_block",))
    yield Made("transformer_block AdamW", ("transformer_block", "--optimizer", "adamw"))


def predicted(made: Made, folder: Path) -> Known:
    """Predict once, and read the file in the folder from then on."""
    path = folder / f"{made.name.replace(' ', '-')}.pickle"
    if not path.exists():
        command = [sys.executable, "-m", "memviz", "run", *made.arguments, "--on", "predict", "--no-numerics"]
        subprocess.run([*command, "--steps", "2", "-o", str(path)], check=True, capture_output=True, timeout=_LIMIT_S)
    trace = load_trace(path)
    return without_labels(made.name, trace, trace.devices[0])


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
