"""Files and samples become open traces, and clicks on open traces and samples change the session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from memviz.results.headline import trace_name
from memviz.trace.load import load_trace
from memviz.ui.shell.session import MOST_OPEN, Context, Opened, Refused, Session, open_trace
from memviz.ui.shell.store import TraceStore
from memviz.ui.upload.samples import OFFERED_SAMPLES, SAMPLES, OfferedSample, find_sample

_MOST_NAME, _MOST_REASON, _MOST_TURN, _MOST_REFUSED = 300, 1000, 9, 5


def on_upload(context: Context, session: Session, message: Mapping[str, str]) -> Session:
    """Handle the browser's message about a file it has sent: it is open, or it was refused.

    Files come one by one: refusals stay listed until a later file is open.
    """
    if "refused" in message:
        name, reason, turn = (message.get(key, "") for key in ("refused", "reason", "turn"))
        refused = Refused(name[:_MOST_NAME], reason[:_MOST_REASON], turn[:_MOST_TURN], _drop(message))
        before = [refusal for refusal in session.refused if refusal.name != refused.name]
        return replace(session, refused=(*before, refused)[-_MOST_REFUSED:])
    after = session
    had = {opened.key for opened in session.opened}
    for key in message.get("stored", "").split(" ")[:MOST_OPEN]:
        after = _with_stored(context, after, key)
    if after is session:
        return after
    after = after.without_refused(before=_drop(message))
    # Of files that come together the first is chosen.
    first = next((opened.key for opened in after.opened if opened.key not in had), after.chosen)
    return after.choosing(session.chosen if "beside" in message and session.current is not None else first)


def _drop(message: Mapping[str, str]) -> int:
    text = message.get("drop", "")
    return int(text) if text.isdecimal() and len(text) <= _MOST_TURN else 0


def _with_stored(context: Context, session: Session, key: str) -> Session:
    table = context.tables.get(key)
    if table is not None:
        still = tuple(refusal for refusal in session.refused if refusal.name != table.name)
        return replace(session, refused=still, table=key, home=False)
    trace = context.store.get(key)
    if trace is None or session.of(key):
        return session
    still = tuple(refusal for refusal in session.refused if refusal.name != trace.about.source)
    return replace(session, refused=still).with_opened(Opened.of(key, trace))


def open_sample(store: TraceStore, session: Session, sample: OfferedSample) -> Session:
    """Open the sample's files that are not open yet. Each visitor has a copy of their own."""
    session = session.without_refused()
    keys = []
    for name in sample.files:
        opened_sample = next((opened for opened in session.opened if opened.sample == name), None)
        if opened_sample is None or store.get(opened_sample.key) is None:
            opened_sample = replace(open_trace(store, load_trace(SAMPLES / name)), sample=name)
            session = session.with_opened(opened_sample)
        keys.append(opened_sample.key)
    compared = tuple(keys) if len(keys) > 1 else session.compared
    return replace(session, chosen=keys[0], compared=compared, home=False)


def reopen_traces(store: TraceStore, stored_keys: Sequence[Sequence[str]], startup: Session | None = None) -> Session:
    """Return a session with the traces given at startup and those that both the browser and the store still have."""
    session = startup or Session()
    for key, sample, *name in (stored for stored in stored_keys if 2 <= len(stored) <= 3):
        trace = store.get(key)
        if trace is not None and session.of(key) is None:
            opened = replace(Opened.of(key, trace), sample=sample)
            session = session.with_opened(opened.named(str(name[0])) if name else opened)
    return session


def session_after(context: Context, session: Session, data: Mapping[str, str]) -> Session:
    session, key = session.without_refused(), data.get("key", "")
    match data.get("act"):
        case "choose":
            return session.choosing(key)
        case "device":
            return session.choosing(key).on_device(key, data.get("device", ""))
        case "rename":
            trace = context.store.get(key)
            return session.renaming(key, data.get("name", ""), trace_name(trace.about.source)) if trace else session
        case "close":
            if key == session.table:
                return replace(session, table="")
            return session.closing(key)
        case "close-all":
            return Session()
        case "home":
            return replace(session, home=True)
        case "sample":
            sample = find_sample(data.get("sample", ""))
            return open_sample(context.store, session, sample) if sample else session
    return session


def tab_after(data: Mapping[str, str]) -> str | None:
    """Return the tab that shows a sample's answer; the samples themselves and opened traces are in Explore."""
    if data.get("act") in ("home", "ranks"):
        return {"home": "explore", "ranks": "ranks"}[data["act"]]
    sample = find_sample(data.get("sample", ""))
    if sample is None:
        return None
    return data["tab"] if data.get("tab") in {other.tab for other in OFFERED_SAMPLES} else sample.tab
