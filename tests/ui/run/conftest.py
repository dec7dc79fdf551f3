"""The answers of the Run tab, shared by all tests of a file."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from memviz.ui.run.answer import AT_HOME, RunAnswers
from memviz.ui.shell.store import TraceStore


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunAnswers]:
    # A machine that is busy with other things may take minutes to start the process.
    patient = replace(AT_HOME, variants=3, price_seconds=AT_HOME.seconds)
    made = RunAnswers(TraceStore(), tmp_path_factory.mktemp("runs"), patient)
    yield made
    made.close()
