"""A page's parts without the page, and one trace open in them."""

import pytest

from memviz.ui.shell.session import Context, open_trace, timeline_key
from memviz.ui.shell.store import TraceStore
from memviz.ui.what_if.replays import Replays
from tests.ui.opened import growing


@pytest.fixture
def context() -> Context:
    return Context(TraceStore())


@pytest.fixture
def key(context: Context) -> str:
    return timeline_key(open_trace(context.store, growing()))


@pytest.fixture
def replays(context: Context) -> Replays:
    return Replays(context)
