"""What agents are told: JSON, short, and with what was left off counted."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from memviz.ui.shell.programs import MOST_AGENT_BYTES, serve_agents, short_json


def test_a_short_answer_is_whole():
    answer = {"peak_bytes": 12, "rows": [{"site": "a.py:1", "stack": [{"line": n} for n in range(40)]}], "none": None}
    assert json.loads(short_json(answer)) == answer


def test_stacks_go_first_and_then_the_end_of_the_longest_list():
    rows = [{"bytes": 1000 - n, "stack": [{"name": f"function{m}"} for m in range(60)]} for n in range(20)]
    text = short_json({"rows": rows, "rest_bytes": 3})
    told = json.loads(text)
    assert len(text) <= MOST_AGENT_BYTES and told["rest_bytes"] == 3
    assert [row["bytes"] for row in told["rows"]] == [row["bytes"] for row in rows]
    assert all(len(row["stack"]) == 6 for row in told["rows"]) and told["left_off"] == {"rows.stack": 20 * 54}

    many = json.loads(short_json({"rows": [{"site": f"file.py:{n}", "bytes": n} for n in range(10_000)]}))
    assert many["rows"][0] == {"site": "file.py:0", "bytes": 0}
    assert len(many["rows"]) + many["left_off"]["rows"] == 10_000


def test_no_answer_is_longer_whatever_is_in_it():
    for answer in (
        {f"key{n}": "\x00" * 3000 for n in range(50)},
        {"text": "ü" * 1_000_000},
        {"a": [["x" * 900] * 900]},
    ):
        assert len(short_json(answer)) <= MOST_AGENT_BYTES
    assert json.loads(short_json({f"key{n}": "\x00" * 3000 for n in range(50)} | {"n": 7}))["n"] == 7


class FakeServer:
    """Gradio's, as far as it is asked."""

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
