"""An MCP client, built with the official library, against the running page."""

import asyncio
import base64
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.request import urlopen

import pytest

from memviz.ui.shell.programs import MOST_AGENT_BYTES
from tests.browser.conftest import SAMPLES

SMALL = {"sequence": 64, "layers": 1}
pytest.importorskip("mcp", reason="mcp is not installed: pip install 'mcp<2'")
Said = list[tuple[bool, str]]


def uploaded(server: str, name: str) -> str:
    """Upload a file as an agent's host does, by a plain request, and return its address on the server."""
    import httpx

    with (SAMPLES / name).open("rb") as file:
        answer = httpx.post(f"{server}gradio_api/upload", files={"files": file}, timeout=None)
    return f"{server}gradio_api/file={answer.json()[0]}"


def ask(server: str, questions: Sequence[tuple[str, dict[str, Any]]]) -> tuple[dict[str, Any], Said]:
    """Return the tools with their input schemas, and for each question whether it failed and its answer."""
    from mcp import ClientSession
    from mcp.client.streamable_http import streamable_http_client

    async def visit() -> tuple[dict[str, Any], Said]:
        async with (
            streamable_http_client(f"{server}gradio_api/mcp/") as (read, write, _),
            ClientSession(read, write) as session,
        ):
            await session.initialize()
            tools = {tool.name: tool.inputSchema for tool in (await session.list_tools()).tools}
            answers = [await session.call_tool(name, values) for name, values in questions]
            return tools, [(bool(told.isError), "".join(part.text for part in told.content)) for told in answers]

    # Playwright keeps a loop running in this thread.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, visit()).result()


def test_an_agent_opens_summarises_finds_compares_replays_and_predicts(server: str) -> None:
    _, [(_, opened)] = ask(server, [("open_snapshot", {"file": uploaded(server, "training.pickle.gz")})])
    file = json.loads(opened)["file"]
    other = uploaded(server, "training-checkpointed.pickle.gz")
    tools, said = ask(
        server,
        [
            ("summary", {"file": file}),
            ("peak", {"file": file, "by": "stack", "top": 10_000}),
            ("find", {"file": file, "query": "gpt.py >1MiB"}),
            ("findings", {"file": file}),
            ("diff", {"file": file, "other": other}),
            ("replay", {"file": file, "memory": "2GiB", "search": True}),
            ("run", {"workload": "feed_forward", "settings": SMALL, "optimizations": [], "card": "T4"}),
        ],
    )
    assert {"open_snapshot", "at", "report"} < set(tools)
    assert not [words for failed, words in said if failed]
    assert max(len(words) for _, words in said) <= MOST_AGENT_BYTES
    told_summary, told_peak, told_found, told_findings, told_diff, told_replay, told_run = (
        json.loads(words) for _, words in said
    )
    assert told_peak["peak_bytes"] == told_summary["devices"][0]["peak_bytes"] == told_diff["a"]["peak_bytes"]
    assert sum(row["bytes"] for row in told_peak["rows"]) == told_peak["peak_bytes"] and told_peak["left_off"]
    assert told_found["live_bytes"] == sum(row["live_bytes"] for row in told_found["rows"])
    assert told_findings["findings"] and told_replay["exact"] and told_replay["advice"] and told_run["fits"] is True


def test_files_come_within_a_question_and_nothing_else_is_fetched(server: str) -> None:
    packed = base64.b64encode((SAMPLES / "out-of-memory.pickle.gz").read_bytes()).decode()
    _, said = ask(
        server,
        [
            ("summary", {"file": f"data:application/octet-stream;base64,{packed}"}),
            ("report", {"files": [uploaded(server, "training.pickle.gz")]}),
            ("summary", {"file": "http://169.254.169.254/latest/meta-data"}),
            ("summary", {"file": f"{server}gradio_api/file=/etc/passwd"}),
            ("summary", {"file": "file:///etc/passwd"}),
        ],
    )
    (_, words), (_, page), *refused = said
    assert json.loads(words)["devices"][0]["oom"] and page.endswith("report.html") and page.startswith(server)
    assert all(failed for failed, _ in refused)
    assert all("fetches no other addresses" in words for _, words in refused[:2])


def test_every_tool_has_a_schema_that_can_be_checked_against(server: str) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    for name, schema in ask(server, [])[0].items():
        jsonschema.Draft202012Validator.check_schema(schema)
        # References that lead nowhere show only where something is checked.
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(dict.fromkeys(schema["properties"], {"of": "another kind"}), schema)
        assert schema["required"], name


SHOW_HOW_FAR_THEY_ARE = {"_share"}
"""Events with a progress display, each on one component that holds nothing else."""


def test_no_event_shows_progress_on_what_it_answers(server: str) -> None:
    """At each word on progress Gradio would copy all that these components hold, in the visitor's browser."""
    with urlopen(f"{server}config") as answer:
        events = json.load(answer)["dependencies"]
    ours = [event for event in events if event["outputs"] and event["api_visibility"] != "public"]
    assert len(ours) > 30
    showing = {event["api_name"]: event for event in ours if event["show_progress_on"] != []}
    assert {name.rstrip("_0123456789") for name in showing} == SHOW_HOW_FAR_THEY_ARE
    assert all(len(event["show_progress_on"] or event["outputs"]) == 1 for event in showing.values())
