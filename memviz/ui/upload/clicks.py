"""What a click in the frame does: a trace chosen, closed or looked at on another device, a sample opened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from memviz.ui.shell.context import Context
from memviz.ui.shell.session import Session
from memviz.ui.upload.opening import open_sample
from memviz.ui.upload.samples import OFFERED_SAMPLES, sample_named


def session_after(context: Context, session: Session, data: Mapping[str, str]) -> Session:
    session, key = session.without_refused(), data.get("key", "")
    match data.get("act"):
        case "choose":
            return session.choosing(key)
        case "device":
            return session.choosing(key).on_device(key, data.get("device", ""))
        case "close":
            if key == session.table:
                return replace(session, table="")
            return session.closing(key)
        case "home":
            return replace(session, home=True)
        case "sample":
            sample = sample_named(data.get("sample", ""))
            return open_sample(context.store, session, sample) if sample else session
    return session


def tab_after(data: Mapping[str, str]) -> str | None:
    """Where a sample's answer stands; the samples themselves and what is opened stand in Explore."""
    if data.get("act") in ("home", "ranks"):
        return {"home": "explore", "ranks": "ranks"}[data["act"]]
    sample = sample_named(data.get("sample", ""))
    if sample is None:
        return None
    return data["tab"] if data.get("tab") in {other.tab for other in OFFERED_SAMPLES} else sample.tab
