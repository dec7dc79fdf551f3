"""Traces open in a page that is not there."""

from memviz.trace.model import Trace
from memviz.ui.shell.session import Context, Session, open_trace
from memviz.ui.shell.store import TraceStore


def opened(*traces: Trace, context: Context | None = None) -> tuple[Context, Session]:
    """Return a context and a session in which these traces are open."""
    context = context or Context(TraceStore())
    session = Session()
    for trace in traces:
        session = session.with_opened(open_trace(context.store, trace))
    return context, session
