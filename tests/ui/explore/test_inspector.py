"""The inspector: one allocation with its stack and source lines, or the moment in figures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from memviz.analysis.allocations import Allocation, BlockKnown, Span, allocation
from memviz.analysis.peak import EventState, EventSummary, FailedRequest, event_state
from memviz.analysis.segments import Fragmentation
from memviz.trace.intern import Interner
from memviz.trace.model import NO_STACK, About, Category, Phase, Trace
from memviz.trace.profile import read_profile
from memviz.ui.explore.inspector import (
    MOST_FRAMES,
    SOURCES_SETTING,
    allocation_html,
    moment_html,
    source_lines,
    stack_html,
)
from memviz.ui.payloads.timelines import lit_rows
from tests.facts import missing
from tests.traces import MiB, alloc, block, frame, free, segment, trace_of
from tests.ui.page import HOSTILE, elements, words

LIBRARY = "/v/lib/python3.12/site-packages/torch/nn/modules"
ADD = frame("at::_ops::add_Tensor::call(at::Tensor const&)", "??", 0)
LINEAR = frame("forward", f"{LIBRARY}/linear.py", 114)
CALL = frame("_call_impl", f"{LIBRARY}/module.py", 1790)
MODEL, MAIN = frame("forward", "/p/net/model.py", 36), frame("main", "/p/train.py", 9)
STACK = [ADD, LINEAR, CALL, MODEL, CALL, MAIN]


def figures(html: str) -> dict[str, str]:
    """Name and value of each fact."""
    parts = [part.partition("</dd>")[0] for part in html.split("<dt>")[1:]]
    return {words(name): words(value) for name, _, value in (part.partition("</dt>") for part in parts)}


@pytest.fixture
def trace() -> Trace:
    return trace_of([alloc(0, 40_000_000, frames=STACK, time_us=100), *free(0, 40_000_000, time_us=34_800)])


@pytest.fixture
def told() -> Allocation:
    """Return an allocation with every detail known, in a trace of 100 events."""
    return Allocation(
        row=7,
        requested_bytes=40_000_000,
        rounded_bytes=40_000_000,
        block_bytes=41_943_040,
        block_known=BlockKnown.REBUILT,
        category=Category.OPTIMIZER_STATE,
        reason="made in an optimizer step, and alive after it",
        site="model.py:36 forward",
        operator="bmm",
        span=Span(start=5, free_requested=20, end=90, never=100, microseconds=34_700),
        pool=(0, 3),
        is_large=True,
        stream=7,
        stack=NO_STACK,
        forward_stack=NO_STACK,
        module="layers.0",
        phase=Phase.STEP,
        metadata="mine",
        compile_context="0/1",
    )


def test_an_allocation_is_told_in_figures(trace):
    html = allocation_html(trace, allocation(trace, trace.devices[0], 0))
    assert words(html).startswith("Pinned allocation 38.1 MiB in model.py:36 Unpin Esc Category")
    assert figures(html) == {
        "Category": "probably output the last allocation of a forward that outlives it",
        "Operator": "add_Tensor",
        "Lifetime": "event 0 → 2 34.7 ms",
    }


def test_those_with_the_same_stack_and_size_are_counted_and_lit():
    one, other = [frame("forward", "/p/model.py", 36)], [frame("forward", "/p/model.py", 37)]
    events = [
        alloc(at * MiB, size, frames=stack)
        for at, (size, stack) in enumerate([(9, one), (9, one), (8, one), (9, other), (9, None)])
    ]
    trace = trace_of(events)
    device = trace.devices[0]
    told = [allocation(trace, device, row) for row in range(5)]
    assert [each.alike for each in told] == [2, 2, 1, 1, 0]
    html = allocation_html(trace, told[1])
    (row,) = elements(html, "li", data_light_by="like")
    assert "2 like this one" in words(html)
    assert lit_rows(trace, device, "like", row["data-light-group"]).tolist() == [0, 1]
    assert not elements(allocation_html(trace, told[2]), "li", data_light_by="like")
    for group in ("9", "-1", "x", None, "9" * 5000):
        assert not len(lit_rows(trace, device, "like", group))


def test_a_profile_has_one_size_and_neither_pools_nor_streams():
    row = {"ph": "i", "name": "[memory]", "ts": 1, "pid": 1, "tid": 1}
    told = {"Addr": 4096, "Bytes": 1000, "Device Type": 0, "Device Id": -1}
    profile = read_profile([{**row, "args": told}], About("measured"), Interner())
    said = figures(allocation_html(profile, allocation(profile, profile.devices[0], 0)))
    assert said["Bytes"] == "1,000 B as the profiler counts them"
    assert not {"Requested", "Allocated", "Pool"} & said.keys()


def test_all_that_is_known_is_told_and_its_events_are_a_click_away(trace, told):
    assert figures(allocation_html(trace, told)) == {
        "Requested": "40,000,000 B",
        "Allocated": "41,943,040 B with a remainder too small to split, as the layout around it shows",
        "Category": "optimizer state made in an optimizer step, and alive after it",
        "Operator": "bmm",
        "Lifetime": "event 5 → 90 34.7 ms, free requested at event 20",
        "Pool": "private 0, 3 · stream 7",
        "Module": "layers.0",
        "Phase": "step",
        "Metadata": "mine",
        "Compiled": "0/1",
    }
    html = allocation_html(trace, told)
    assert [element["data-mv-at"] for element in elements(html, "button") if "data-mv-at" in element] == ["5", "90"]
    assert elements(html, "button", data_mv_pin="7")
    html = allocation_html(trace, replace(told, forward_stack=0))
    assert "Where its forward was called Copy 3 library frames" in words(html)


def test_a_lifetime_says_what_of_it_is_not_seen():
    trace = trace_of([alloc(4096, 5)], segments=[segment(0, 2 * MiB, [block(0, 512, 500), block(4096, 512, 5)])])
    spans = [figures(allocation_html(trace, allocation(trace, trace.devices[0], row)))["Lifetime"] for row in (0, 1)]
    assert spans == ["before the first event → the end", "event 0 → the end"]
    trace = trace_of([alloc(0, 5, time_us=10), alloc(512, 5, time_us=4_010)])
    assert figures(allocation_html(trace, allocation(trace, trace.devices[0], 0)))["Lifetime"].endswith(
        "at least 4.00 ms"
    )


def test_our_frames_come_first_library_frames_fold_and_the_whole_stack_can_be_copied(trace):
    html = stack_html(trace, 0, "Stack")
    summaries = [words(part.partition("</summary>")[0]) for part in html.split("<summary>")[1:]]
    assert summaries == ["3 library frames", "1 library frame"]
    own = [words(f"<i {part.partition('</div>')[0]}") for part in html.split('<div class="mv-frame"')[1:]]
    assert own == ["forward net/model.py:36", "main p/train.py:9"]
    copied = elements(stack_html(trace, 0, "Stack"), "button")[0]["data-mv-copy"]
    assert copied.splitlines()[3:] == [
        "forward /p/net/model.py:36",
        f"_call_impl {LIBRARY}/module.py:1790",
        "main /p/train.py:9",
    ]
    assert words(stack_html(trace, NO_STACK, "Stack")) == "No stack was recorded for it."


def test_a_source_line_stands_below_its_frame(trace):
    asked = []

    def source(path: str, line: int) -> tuple[tuple[int, str], ...]:
        asked.append((path, line))
        return ((35, "def f():"), (36, f"    x = {HOSTILE}")) if line == 36 else ()

    html = stack_html(trace, 0, "Stack", source)
    assert asked == [("/p/net/model.py", 36), ("/p/train.py", 9)]
    assert f"forward net/model.py:36 35 def f(): 36 x = {HOSTILE}" in words(html)
    assert len(elements(html, "div", aria_current="true")) == 1


def test_a_stack_without_end_is_cut():
    trace = trace_of([alloc(0, 5, frames=[frame("f" * 9_000, "a.py", i) for i in range(1000)])])
    html = stack_html(trace, 0, "Stack")
    assert f"{1000 - MOST_FRAMES} outer frames are not shown" in words(html)
    assert len(html) < 700 * MOST_FRAMES + 610 * MOST_FRAMES


def some_moment(**more) -> EventState:
    parts = Fragmentation(
        event=4,
        reserved=1000,
        live=400,
        waiting=100,
        rounding=50,
        free_segments=200,
        free_remainders=150,
        free_pages=90,
        unknown=10,
        outside=5,
    )
    about = {"event": 4, "microseconds": 2_000, "count": 3, "bytes": parts, "largest_free": 200, "annotation": "step 1"}
    return EventState(**{**about, "around": (), "failed": None, **more})


def test_the_moment_says_where_every_reserved_byte_is():
    html = moment_html(some_moment())
    assert words(html).startswith("Event 4 505 B live 3 allocations, 2.00 ms after the first event, in step 1 Live")
    assert figures(html) == {
        "Live": "505 B",
        "· waiting": "100 B freed, but another stream may still use it",
        "· not placed": "5 B in no known segment",
        "Rounding": "50 B beyond the request",
        "Cached": "440 B reserved and free",
        "· segments": "200 B whole; empty_cache() returns them",
        "· remainders": "150 B of segments in use",
        "· pages": "90 B of expandable segments",
        "Unknown": "10 B beyond the known segments",
        "Reserved": "1,000 B",
        "Largest free": "200 B in one piece",
    }


def test_what_the_file_does_not_tell_is_no_zero_and_a_file_without_history_has_a_moment():
    trace = trace_of([alloc(0, 512), alloc(1024, 512)], segments=[])
    known = figures(moment_html(event_state(trace, trace.devices[0], 1)))
    assert known == {"Live": "1,024 B", "Reserved": "not in the file"}
    # Nor is it one where nothing is live yet.
    assert figures(moment_html(event_state(trace, trace.devices[0], -1)))["Reserved"] == "not in the file"
    trace = trace_of([], segments=[segment(0, 2 * MiB, [block(0, 512, 500)])])
    html = moment_html(event_state(trace, trace.devices[0], -1))
    assert words(html).startswith("Before the first event 500 B live 1 allocation Live 500 B")


def test_what_did_not_fit_is_said_and_the_events_around_are_a_click_away():
    html = moment_html(some_moment(failed=FailedRequest(1, None, 144 * MiB, 3 * MiB, 0, 0, "")))
    assert missing(words(html), "144 MiB", "3.00 MiB", "did not fit") == []
    around = (
        EventSummary(3, "segment_alloc", 2 * MiB, ""),
        EventSummary(4, "alloc", 5, "model.py:3 forward"),
        EventSummary(5, "free_requested", 5, "autograd engine"),
    )
    html = moment_html(some_moment(around=around))
    listed = "3 segment alloc 2.00 MiB 4 alloc 5 B model.py:3 forward 5 free requested 5 B freed in autograd engine"
    assert listed in words(html)
    assert [element["data-mv-at"] for element in elements(html, "button")] == ["3", "4", "5"]
    assert len(elements(html, "li", aria_current="true")) == 1


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "dir.py").mkdir(parents=True)
    (folder / "train.py").write_text("import torch\n    x = torch.zeros(3)\n", encoding="utf-8")
    (folder / "odd.py").write_bytes(b"x = '\xff" + b"y" * 9000)
    (folder / "key.pem").write_text("secret\n", encoding="utf-8")
    (tmp_path / "secret.py").write_text("password = 1\n", encoding="utf-8")
    (folder / "innocent.py").symlink_to(tmp_path / "secret.py")
    (tmp_path / "link").symlink_to(folder)
    return folder


def line(root: Path | str, filename: str, number: int = 1) -> str:
    return dict(source_lines(filename, number, (), {SOURCES_SETTING: str(root)})).get(number, "").strip()


@pytest.mark.parametrize(
    ("name", "number", "shown"),
    [
        ("train.py", 2, "x = torch.zeros(3)"),
        ("{root}/train.py", 1, "import torch"),
        ("odd.py", 1, "x = '\N{REPLACEMENT CHARACTER}" + "y" * 294),
        *(("train.py", number, "") for number in (0, -1, 99)),
        *((name, 1, "") for name in ("../secret.py", "{root}/../secret.py", "sub/../../secret.py", "innocent.py")),
        *((name, 1, "") for name in ("/etc/passwd", "key.pem", "dir.py", "gone.py", "train.py\0", "")),
    ],
)
def test_only_lines_of_source_files_in_the_folder_are_shown(root, name, number, shown):
    assert line(root, name.format(root=root), number) == shown
    assert line(root.parent / "link", name.format(root=root), number) == shown, "the folder may be a link"
    assert line(root / "gone", name.format(root=root), number) == "", "and may be gone"
    assert line("", name.format(root=root), number) == "" and source_lines(name, number, (), {}) == (), "off by default"


def test_its_neighbours_come_with_it_without_what_they_are_indented_by(root):
    text = "".join(f"        line_{number}()\n" for number in range(1, 9))
    (root / "train.py").write_text(text.replace("    line_4", "        line_4"), encoding="utf-8")
    shown = source_lines("train.py", 5, (str(root),), {})
    assert shown == ((3, "line_3()"), (4, "    line_4()"), (5, "line_5()"), (6, "line_6()"), (7, "line_7()"))
    assert [number for number, _ in source_lines("train.py", 1, (str(root),), {})] == [1, 2, 3]
    assert source_lines("train.py", 9, (str(root),), {}) == ()
