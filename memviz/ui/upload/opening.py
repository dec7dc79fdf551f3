"""Files and samples become open traces; what is refused leaves everything else as it was."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from memviz.analysis.which_device import chosen_device
from memviz.errors import TraceError
from memviz.trace.load import load_trace
from memviz.trace.model import Trace
from memviz.ui.shell.session import Opened, Refused, Session
from memviz.ui.shell.store import TraceStore

SAMPLES = Path(__file__).parents[3] / "sample_traces"
Say = Callable[[float, str], None]
_MOST_NAME, _MOST_REASON, _MOST_TURN, _MOST_REFUSED = 300, 1000, 9, 5


@dataclass(frozen=True)
class Sample:
    name: str
    title: str
    text: str
    files: tuple[str, ...]
    tab: str


SAMPLE_LIST = (
    Sample(
        "training",
        "What is the peak made of?",
        "Three training steps of a small GPT, recorded from the first byte.",
        ("training.pickle.gz",),
        "explore",
    ),
    Sample(
        "checkpointing",
        "What does checkpointing save?",
        "The same steps without and with activation checkpointing, on one scale.",
        ("training.pickle.gz", "training-checkpointed.pickle.gz"),
        "compare",
    ),
    Sample(
        "out-of-memory",
        "Why did it run out of memory?",
        "144 MiB did not fit, although more than that was reserved and free.",
        ("out-of-memory.pickle.gz",),
        "what-if",
    ),
    Sample(
        "late-start",
        "What if recording started late?",
        "What was live before the first event is still counted.",
        ("late-start.pickle.gz",),
        "explore",
    ),
)


def sample_named(name: str) -> Sample | None:
    return next((each for each in SAMPLE_LIST if each.name == name), None)


def open_files(
    store: TraceStore, session: Session, paths: Sequence[str], say: Say, is_wanted: Callable[[], bool] = lambda: True
) -> Session:
    session = session.without_refused()
    for number, path in enumerate(paths):
        name = Path(path).name

        def progress(done: int, total: int, name: str = name, number: int = number) -> None:
            share = (number + 0.9 * done / max(total, 1)) / len(paths)
            say(share, f"Reading {name}, {100 * done // max(total, 1)} %")

        try:
            session = session.with_opened(opened(store, load_trace(path, progress=progress, is_wanted=is_wanted)))
        except TraceError as error:
            session = session.with_refused(Refused(name, f"{error.reason} {error.remedy}".strip()))
    return session


def arrived(store: TraceStore, session: Session, said: Mapping[str, str]) -> Session:
    """What the visitor's own browser says of a file that it has sent: that it is open, or why not.

    Files come one by one: what was refused before stays on the page until it is dismissed, or opened after all.
    """
    if "refused" in said:
        name, reason, turn = (said.get(each, "") for each in ("refused", "reason", "turn"))
        refused = Refused(name[:_MOST_NAME], reason[:_MOST_REASON], turn[:_MOST_TURN])
        before = [each for each in session.refused if each.name != refused.name]
        return replace(session, refused=(*before, refused)[-_MOST_REFUSED:])
    key = said.get("stored", "")
    trace = store.get(key)
    if trace is None or session.of(key):
        return session
    still = tuple(each for each in session.refused if each.name != trace.about.source)
    return replace(session, refused=still).with_opened(_described(trace, key))


def open_sample(store: TraceStore, session: Session, sample: Sample) -> Session:
    """Those of its files that are not open yet. Each visitor has a copy, so that nobody can close another's."""
    session = session.without_refused()
    keys = []
    for name in sample.files:
        known = next((each for each in session.opened if each.sample == name), None)
        if known is None or store.get(known.key) is None:
            known = replace(opened(store, load_trace(SAMPLES / name)), sample=name)
            session = session.with_opened(known)
        keys.append(known.key)
    compared = tuple(keys) if len(keys) > 1 else session.compared
    return replace(session, chosen=keys[0], compared=compared, home=False)


def reopened(store: TraceStore, kept: Sequence[Sequence[str]], given: Session | None = None) -> Session:
    """What everybody is given, and what this visitor's browser remembers and the store still has."""
    session = given or Session()
    for key, sample in (each for each in kept if len(each) == 2):
        trace = store.get(key)
        if trace is not None and session.of(key) is None:
            session = session.with_opened(replace(_described(trace, key), sample=sample))
    return session


def remembered(opened: Sequence[Opened]) -> list[list[str]]:
    return [[each.key, each.sample] for each in opened]


def opened(store: TraceStore, trace: Trace, *, pinned: bool = False) -> Opened:
    return _described(trace, store.add(trace, pinned=pinned))


def _described(trace: Trace, key: str) -> Opened:
    name = trace.about.source
    for ending in (".gz", ".pickle", ".pkl", ".json"):
        name = name.removesuffix(ending)
    names = tuple(each.name for each in trace.devices)
    return Opened(key, name, chosen_device(trace).name, names)
