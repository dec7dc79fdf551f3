"""Tests of the interface for programs and agents: addresses of files, and short JSON."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gradio as gr
import pytest

from memviz.errors import UsageError
from memviz.ui.shell.programs import MOST_AGENT_BYTES, address_of, local_path, resolve_uploads, serve_agents, short_json

META = {"_type": "gradio.FileData"}


def resolved(value: Any, kind: type = object) -> Any:
    return resolve_uploads([kind.__new__(kind)], [value])[0]


def test_an_upload_is_found_by_its_address_under_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    file = tmp_path / "ab12" / "my run.pickle"
    file.parent.mkdir()
    file.write_bytes(b"x")
    address = address_of(str(file), "https://owner-space.hf.space")
    assert local_path(address) == local_path(address.replace("my run", "my%20run")) == str(file)
    for other in ("/etc/passwd", f"{tmp_path}/../x", "", str(tmp_path), f"{tmp_path}/none", "\x00"):
        assert local_path(address_of(other, "http://here")) is None
    assert resolved(address, gr.File) == {"path": str(file), "meta": META, "url": None}
    assert resolved([address], gr.File)[0]["path"] == str(file)
    given = {"path": address, "meta": META, "url": address, "orig_name": "a"}
    assert resolved({"deep": [given]}) == {"deep": [{**given, "path": str(file), "url": None}]}


def test_other_values_stay_as_they_are():
    values: list[Any] = ["http://a.example is a text", 3, None, {"path": "/tmp/x", "meta": {}}, {"path": "http://a"}]
    values.append("more than there are inputs")
    assert resolve_uploads([object()] * 5, [*values]) == values


@pytest.mark.parametrize("nest", [lambda given: given, lambda given: {"a": [{"b": given}]}])
def test_no_address_reaches_gradio_wherever_it_is(nest: Any):
    with pytest.raises(UsageError, match="fetches no other addresses"):
        resolved(nest({"path": " HTTP://169.254.169.254/x", "meta": META}))


def test_a_short_answer_is_whole_and_of_a_long_one_stacks_go_first():
    answer = {"peak_bytes": 12, "rows": [{"site": "a.py:1", "stack": [{"line": n} for n in range(40)]}], "none": None}
    assert json.loads(short_json(answer)) == answer
    rows = [{"bytes": 1000 - n, "stack": [{"name": f"function{m}"} for m in range(60)]} for n in range(20)]
    text = short_json({"rows": rows, "rest_bytes": 3})
    told = json.loads(text)
    assert len(text) <= MOST_AGENT_BYTES and told["rest_bytes"] == 3
    assert [row["bytes"] for row in told["rows"]] == [row["bytes"] for row in rows]
    assert all(len(row["stack"]) == 6 for row in told["rows"]) and told["left_off"] == {"rows.stack": 20 * 54}

    many = json.loads(short_json({"rows": [{"site": f"file.py:{n}", "bytes": n} for n in range(10_000)]}))
    assert many["rows"][0] == {"site": "file.py:0", "bytes": 0}
    assert len(many["rows"]) + many["left_off"]["rows"] == 10_000
    for answer in (
        {f"key{n}": "\x00" * 3000 for n in range(50)},
        {"text": "ü" * 1_000_000},
        {"a": [["x" * 900] * 900]},
    ):
        assert len(short_json(answer)) <= MOST_AGENT_BYTES
    assert json.loads(short_json({f"key{n}": "\x00" * 3000 for n in range(50)} | {"n": 7}))["n"] == 7


class FakeServer:
    """The part of Gradio's server that is used."""

    def postprocess_output_data(self, data: list[Any], root_url: str) -> list[Any]:
        return data

    def convert_strings_to_filedata(self, value: Any, places: Any) -> Any:
        return {"files": [{"path": "/tmp/here", "meta": {}}, {"path": "https://example.org/x", "meta": {}}]}


def test_files_within_questions_are_deleted_in_time_and_links_stay_links():
    page = SimpleNamespace(mcp_server_obj=FakeServer(), temp_file_sets=[])
    serve_agents(page)
    page.mcp_server_obj.convert_strings_to_filedata({}, [])
    assert page.temp_file_sets == [{"/tmp/here"}]
    link = {"path": "/tmp/report.html", "url": None, "meta": {}}
    assert page.mcp_server_obj.postprocess_output_data([{"a": None}, link], "http://here") == ['{"a": null}', link]
    serve_agents(SimpleNamespace(mcp_server_obj=None))
