"""A trace that was made of an open one, as one more open trace."""

from __future__ import annotations

from dataclasses import replace

from memviz.trace.model import Trace
from memviz.ui.shell.context import open_trace
from memviz.ui.shell.session import Session
from memviz.ui.shell.store import TraceStore


def with_made(
    store: TraceStore, session: Session, recording: str, made: Trace, *, compared: bool, sample: str = ""
) -> Session:
    """Chosen, or put beside the recording; the same one is not opened twice. `sample` is its name in links."""
    session = session.without_refused()
    for opened in session.opened:
        known = store.get(opened.key)
        if known is not None and known.about == made.about:
            session = session.choosing(opened.key)
            break
    else:
        session = session.with_opened(replace(open_trace(store, made), sample=sample))
    if compared and session.of(recording) is not None:
        return replace(session, compared=(recording, session.chosen))
    return session
