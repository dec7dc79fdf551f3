"""What leaves the What if tab: the answer as a page, and the replay as a snapshot or as one more open trace."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from memviz.allocator.replayed import Replayed
from memviz.allocator.search import Search
from memviz.allocator.what_if import WhatIf
from memviz.headlines.names import trace_name
from memviz.trace.formats.write_snapshot import write_pickle
from memviz.trace.model import DeviceTrace, Trace
from memviz.ui.shell.exports import file_stem, file_with, page_file
from memviz.ui.shell.opened_beside import with_made
from memviz.ui.shell.session import Session
from memviz.ui.shell.store import TraceStore
from memviz.ui.what_if.saved_page import what_if_page
from memviz.units import bytes_text


def answer_file(trace: Trace, device: DeviceTrace, outcome: WhatIf, searched: Search | None) -> str:
    return page_file("what-if.html", what_if_page(trace, device, outcome, searched))


def snapshot_file(replayed: Replayed) -> str:
    return file_with(f"{file_stem(trace_name(replayed.trace.about.source))}-replayed.pickle", partial(_write, replayed))


def _write(replayed: Replayed, path: Path) -> None:
    with path.open("wb") as file:
        write_pickle(replayed.trace, file)


def with_replay(store: TraceStore, session: Session, recording: str, replayed: Replayed, *, compared: bool) -> Session:
    """One more open trace, chosen, or put beside the recording; the same one is not opened twice."""
    return with_made(store, session, recording, _named(replayed), compared=compared)


def _named(replayed: Replayed) -> Trace:
    """In a list it has to be told from its recording; under which settings stands there too."""
    where = "" if replayed.memory is None else f" in {bytes_text(replayed.memory)}"
    about = replayed.trace.about
    return replace(
        replayed.trace, about=replace(about, source=f"replay of {trace_name(replayed.trace.about.source)}{where}")
    )
