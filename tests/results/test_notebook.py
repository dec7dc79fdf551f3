"""The outputs of a notebook executed by a real kernel."""

import os
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest

import memviz
from memviz.errors import TraceError
from tests.house.repository import ROOT
from tests.runner.processes import PATIENCE_SECONDS

pytest.importorskip("nbclient", reason="nbclient and ipykernel are not installed: tests/requirements.txt has them")
pytest.importorskip("ipykernel", reason="nbclient and ipykernel are not installed: tests/requirements.txt has them")

TRAINING = "sample_traces/training.pickle.gz"
CELLS = {
    "open": f"import memviz; training = memviz.open({TRAINING!r}); training",
    "peak": "training.peak()",
    "print": "print(training.peak())",
    "live": "training.live_at(event=1000, by='category')",
    "segments": "training.segments_at(event=1000)",
    "compare": "compared = training.compare('sample_traces/training-checkpointed.pickle.gz'); compared",
    "replay": "training.replay(settings='expandable_segments:True')",
    "frame": "training.by('category').to_frame()",
    "timeline": "memviz.figures.timeline(training)",
    "bars": "memviz.figures.peak(training.by('category'))",
    "icicle": "memviz.figures.icicle(training)",
    "map": "memviz.figures.segments(training)",
    "waterfall": "memviz.figures.waterfall(compared)",
    "error": "memviz.open('nothing.pickle')",
}
ANSWERS = ("open", "peak", "live", "segments", "compare", "replay")
FIGURES = ("timeline", "bars", "icicle", "map", "waterfall")
PLOTLY = "application/vnd.plotly.v1+json"


def outputs_of(cells: dict[str, str]) -> dict[str, list[Any]]:
    """Run the cells of a notebook in a kernel; return the outputs of each."""
    import nbformat
    from nbclient import NotebookClient
    from traitlets.config import Config

    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells.values()])
    # Ports are chosen first and bound by the kernel later, when another process may have taken one.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        by_files = {"transport": "ipc", "ip": os.path.join(folder, "kernel")}
        config = Config({"KernelManager": by_files if os.name == "posix" else {}})
        patience = {"timeout": PATIENCE_SECONDS, "startup_timeout": PATIENCE_SECONDS}
        resources = {"metadata": {"path": str(ROOT)}}
        NotebookClient(notebook, config=config, allow_errors=True, resources=resources, **patience).execute()
    return {name: cell["outputs"] for name, cell in zip(cells, notebook.cells, strict=True)}


@pytest.fixture(scope="module")
def executed() -> Iterator[dict[str, list[Any]]]:
    yield outputs_of(CELLS)


def test_only_the_cell_that_should_fails(executed):
    assert [name for name, shown in executed.items() if any(part.output_type == "error" for part in shown)] == ["error"]
    (failed,) = executed["error"]
    with pytest.raises(TraceError) as caught:
        memviz.open("nothing.pickle")
    assert (failed.ename, failed.evalue) == ("TraceError", str(caught.value))


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_shows_its_sentence_and_its_table(name, executed):
    (shown,) = executed[name]
    assert set(shown.data) == {"text/plain", "text/html"}
    assert shown.data["text/plain"].endswith(".") and "\n" not in shown.data["text/plain"]
    assert "<table" in shown.data["text/html"] and "<strong>" in shown.data["text/html"]


def test_it_prints_the_same_sentence_and_a_frame_shows_as_a_frame(executed):
    (printed,), (shown,) = executed["print"], executed["peak"]
    assert printed.text == shown.data["text/plain"] + "\n" == f"{memviz.open(ROOT / TRAINING).peak()}\n"
    (shown,) = executed["frame"]
    assert 'class="dataframe"' in shown.data["text/html"] and "activation" in shown.data["text/html"]


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_drawn_by_the_notebook(name, executed):
    (shown,) = executed[name]
    assert shown.data[PLOTLY]["data"]
