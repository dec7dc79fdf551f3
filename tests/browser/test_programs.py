"""The page's interface for programs gives the command line's answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from memviz.commands.diff import diff
from memviz.commands.peak import peak
from memviz.commands.summary import summary
from memviz.trace.load import load_trace

SAMPLES = Path(__file__).parents[2] / "sample_traces"
TRAINING, CHECKPOINTED = SAMPLES / "training.pickle.gz", SAMPLES / "training-checkpointed.pickle.gz"
gradio_client = pytest.importorskip("gradio_client")


@pytest.fixture(scope="module")
def client(server: str) -> Any:
    return gradio_client.Client(server, verbose=False)


def test_public_endpoints_are_named_and_nothing_else_is_public(client: Any) -> None:
    named = client.view_api(return_format="dict", print_info=False)["named_endpoints"]
    assert set(named) == {"/summary", "/peak", "/diff", "/report", "/run"}


def test_answers_are_those_of_the_command_line(client: Any) -> None:
    file, other = gradio_client.handle_file(TRAINING), gradio_client.handle_file(CHECKPOINTED)
    traces = [load_trace(TRAINING), load_trace(CHECKPOINTED)]
    assert client.predict(file, api_name="/summary")["devices"] == summary(traces[0])["devices"]
    assert client.predict(file, "category", 3, api_name="/peak") == peak(traces[0], by="category", top=3)
    assert client.predict(file, other, "site", 5, api_name="/diff") == diff(traces, top=5)


def test_a_report_is_one_file(client: Any) -> None:
    page = client.predict([gradio_client.handle_file(TRAINING)], api_name="/report")
    assert Path(page).read_text(encoding="utf-8").startswith("<!doctype html>")


def test_a_broken_file_is_an_error_in_words(client: Any, tmp_path: Path) -> None:
    path = tmp_path / "broken.pickle"
    path.write_bytes(b"hello")
    with pytest.raises(Exception, match="broken.pickle: It is neither a pickle nor JSON"):
        client.predict(gradio_client.handle_file(path), api_name="/summary")
