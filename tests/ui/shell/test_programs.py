"""The interface for programs and agents, and files made for a visitor."""

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gradio as gr
import pytest

from memviz.errors import UsageError
from memviz.ui.shell import temporary_files
from memviz.ui.shell.programs import MOST_AGENT_BYTES, address_of, local_path, resolve_uploads, serve_agents, short_json
from memviz.ui.shell.temporary_files import (
    Exports,
    drop_page,
    file_stem,
    file_with,
    keep_page,
    kept_page,
    table_writer,
    text_writer,
)

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


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("late-start", "late-start"),
        ("../../etc/passwd", "_.._etc_passwd"),
        ('a"; b\r\nc', "a___b__c"),
        ("...", "trace"),
        ("漢" * 100, "漢" * 26),
    ],
)
def test_a_file_is_named_after_its_trace_by_signs_and_a_length_that_every_system_takes(name: str, stem: str) -> None:
    assert file_stem(name) == stem


def test_a_page_is_written_whole_whatever_its_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    assert (
        Path(file_with("page.html", text_writer(lambda: "half a sign: \ud800"))).read_text(encoding="utf-8")
        == "half a sign: ?"
    )


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))

    def fails(path: Path) -> None:
        path.write_text("a part")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        file_with("part.html", fails)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_page_is_kept_where_the_owner_allows_it_until_its_link_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    monkeypatch.delenv(temporary_files.LINKS_SETTING, raising=False)
    write = text_writer(lambda: "a page")
    with pytest.raises(UsageError, match="disabled on this server"):
        keep_page(write, "a")
    monkeypatch.setenv(temporary_files.LINKS_SETTING, "2")
    name, other = keep_page(write, "a"), keep_page(write, "a")
    assert name != other and len(name) == 40
    path = kept_page(name)
    assert path is not None and path.read_text() == "a page"
    # A name from an address leads nowhere else.
    for wrong in ("", ".", "..", f"../{path.parent.name}/{name}", name[:-1], name.swapcase()):
        assert kept_page(wrong) is None
    drop_page(other)
    assert kept_page(other) is None
    Exports().forget()
    assert kept_page(name) == path
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 2 * 3600 + 1)
    assert kept_page(name) is None
    Exports().forget()
    assert not path.exists()


def test_kept_pages_are_bounded_for_all_and_for_each_visitor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    monkeypatch.setenv(temporary_files.LINKS_SETTING, "1")
    monkeypatch.setattr(temporary_files, "MOST_OF_VISITOR", 2)
    first = keep_page(text_writer(lambda: "x"), "a")
    keep_page(text_writer(lambda: "x"), "a")
    with pytest.raises(UsageError, match="You have reached your limit"):
        keep_page(text_writer(lambda: "x"), "a")
    keep_page(text_writer(lambda: "x"), "b")
    monkeypatch.setattr(temporary_files, "MOST_KEPT", 3)
    with pytest.raises(UsageError, match="This server has reached its limit"):
        keep_page(text_writer(lambda: "x"), "c")
    drop_page(first)
    monkeypatch.setattr(temporary_files, "MOST_BYTES_OF_VISITOR", 5)
    with pytest.raises(UsageError, match="You have reached your limit"):
        keep_page(text_writer(lambda: "12345"), "a")
    assert len(list((tmp_path / "memviz-shared").iterdir())) == 2


def test_the_table_of_rows_leaves_out_what_is_no_cell_and_writes_no_formula(tmp_path: Path) -> None:
    table_writer(lambda: [{"a": "=1+1", "b": 2, "c": [1]}, {"a": "x", "b": None, "c": None}])(
        path := tmp_path / "t.csv"
    )
    assert path.read_text() == "a,b\n'=1+1,2\nx,\n"
