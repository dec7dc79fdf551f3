"""The Ranks tab: its visibility, contents and targets, its views as text, and the map's value."""

import base64
import csv
import json
import re
from dataclasses import replace
from pathlib import Path

import gradio as gr
import numpy as np
import pytest

from memviz.ranks.gather import Gathering, gather_ranks
from memviz.ranks.numbers import Rank, by_mesh, mesh_of
from memviz.ranks.places import Place
from memviz.ranks.reduce_rank import row_of
from memviz.ranks.row import FailedFile, RankRanOut, RankRow
from memviz.ranks.summary import NOTHING, RankSummary, aligned, summary_of
from memviz.ranks.table import ranks_of_table
from memviz.trace.load import load_trace
from memviz.ui.ranks.answer import has_ranks, open_ranks, rank_map_value
from memviz.ui.ranks.tab import draw, pressed, shared_files, show
from memviz.ui.ranks.views import failed_html, groups_html, one_rank_html, outliers_html, ranks_verdict_html, spans_text
from memviz.ui.shell.page_frame import traces_html
from memviz.ui.shell.session import Context, Session, open_trace
from memviz.ui.shell.store import TraceStore
from memviz.ui.upload.opening import on_upload, session_after
from tests.facts import missing
from tests.ranks.files import annotations, rank_events, read, write_ranks, written
from tests.traces import MiB, trace_of
from tests.ui.opened import opened
from tests.ui.page import HOSTILE, elements, tags, words


def row(place: str, *, more: int = 0, steps: int = 3, mesh: str = "", name: str = "train.py") -> RankRow:
    events = rank_events(more=more, steps=steps, name=name)
    made = row_of(trace_of(events, external_annotations=annotations(events, steps)), Place(place))
    return replace(made, said_mesh=mesh)


@pytest.fixture(scope="module")
def job() -> RankSummary:
    ranks = [Rank(n, row(f"rank{n}.pickle", more=8 * MiB if n == 5 else 0)) for n in range(8)]
    return summary_of(tuple(ranks), (FailedFile("/job/rank9.pickle", "It is empty."),))


def cells(value: dict) -> np.ndarray:
    rows = len(value["ranks"])
    return np.frombuffer(base64.b64decode(value["shades"]), np.uint8).reshape(rows, -1)


def test_the_map_has_a_byte_for_every_moment_of_every_rank(job: RankSummary) -> None:
    value = rank_map_value(job, 5)
    assert (value["ranks"], value["chosen"], value["outliers"]) == (list(range(8)), 5, [5])
    assert value["steps"] == ["before", "step 0", "step 1", "step 2"]
    assert value["peaks"] == [rank.row.peak_bytes for rank in job.ranks]
    shades, highest = cells(value), job.highest.row.peak_bytes
    assert shades.shape == (8, 4 * value["columns"])
    for shade, rank in zip(shades, job.ranks, strict=True):
        told = (shade.astype(float) - 1) / 254 * highest
        exact = aligned([rank]).live[0]
        assert np.abs(told - exact).max() <= highest / 254 / 2 + 1
    assert shades.max() == 255


def test_a_thousand_ranks_are_less_than_two_megabytes() -> None:
    curve = row("rank0.pickle")
    ranks = tuple(
        Rank(number, replace(curve, said_mesh=f"pp={number // 128},dp={number % 128}")) for number in range(1024)
    )
    value = rank_map_value(summary_of(ranks), 0)
    assert cells(value).shape[0] == 1024
    assert len(json.dumps(value)) < 1_000_000


def test_ranks_of_fewer_steps_are_empty_where_they_have_none() -> None:
    ranks = [Rank(0, row("rank0.pickle", steps=3)), Rank(1, row("rank1.pickle", steps=2))]
    table = aligned(ranks)
    assert [number for number, _ in table.steps] == [-1, 0, 1, 2]
    missing = table.live == NOTHING
    assert not missing[0].any()
    assert missing[1].reshape(4, -1).all(axis=1).tolist() == [False, False, False, True]
    assert table.live.max(axis=1).tolist() == [rank.row.peak_bytes for rank in ranks]


def test_rows_are_ordered_by_the_mesh_where_all_say_it() -> None:
    said = [Rank(n, row(f"rank{n}.pickle", mesh=f"pp={n % 2},dp={n // 2}")) for n in range(4)]
    assert [rank.number for rank in by_mesh(said)] == [0, 2, 1, 3]
    assert [rank.number for rank in by_mesh([*said[1:], Rank(0, row("rank0.pickle"))])] == [0, 1, 2, 3]
    assert mesh_of(Rank(7, row("job/run.rank7.pp1.dp3.pickle"))) == (("pp", 1), ("dp", 3))
    assert mesh_of(Rank(7, row("app1/rank7.pickle"))) == ()


def test_groups_outliers_and_what_is_left_out_are_told_with_their_causes(job: RankSummary) -> None:
    assert "Outliers 1" in words(outliers_html(job))
    assert missing(words(outliers_html(job)), "train.py:99", "+8.00 MiB", "rank 3") == []
    assert not groups_html(job), "one group, which the headline counts"
    assert spans_text([0, 1, 2, 5, 7, 8]) == "0–2, 5, 7–8"
    said = words(ranks_verdict_html(job))
    assert said.startswith("Highest peak of 8 ranks: 128 MiB, on rank 5. 7 need the same, 1 differs.")
    assert missing(words(failed_html(job)), "/job/rank9.pickle", "Left out") == []
    first, *others = job.ranks
    short = replace(first, row=replace(first.row, ran_out=(RankRanOut(0, MiB, 0, 0, ""),), ran_out_count=1))
    cut = summary_of((short, *others))
    assert missing(words(ranks_verdict_html(cut)), "7 reached", "1 differs") == []


def test_one_rank_says_what_it_has_more_and_where_its_figures_are_from(job: RankSummary) -> None:
    html = one_rank_html(job, 5, can_open=True)
    assert "Rank 5" in words(html) and "peak 128 MiB" in words(html)
    assert "+8.00 MiB against rank 3" in words(html) and "+8.00 MiB train.py:99 cache" in words(html)
    assert [button["data-act"] for button in elements(html, "button")] == ["open-rank", "compare-rank"]
    assert elements(one_rank_html(job, 5, can_open=False), "button") == []
    assert "rank 3" in words(one_rank_html(job, 0, can_open=True))
    assert "Select a rank" in words(one_rank_html(job, None, can_open=True))
    said = words(one_rank_html(job, 5, can_open=True))
    assert "measured peak 128 MiB" in said, "of a file of one device there is nothing to say of that"
    one = replace(
        job.ranks[5], row=replace(job.ranks[5].row, origin="predicted for a card", device="7", device_count=8)
    )
    of_several = summary_of((*job.ranks[:5], one))
    assert "predicted for a card device 7, one of 8 peak 128 MiB" in words(one_rank_html(of_several, 5, can_open=True))
    assert "against rank 2 probably" in words(one_rank_html(of_several, 5, can_open=True))


def test_names_from_files_are_text_and_never_markup() -> None:
    ranks = [Rank(n, row(f"{HOSTILE}rank{n}.pickle", more=8 * MiB * (n == 2), name=HOSTILE, mesh="")) for n in range(4)]
    job = summary_of(tuple(ranks), (FailedFile(HOSTILE, HOSTILE),))
    for html in (
        ranks_verdict_html(job),
        groups_html(job),
        outliers_html(job),
        one_rank_html(job, 2, can_open=True),
        failed_html(job),
    ):
        assert not {"b>x", "script"} & set(tags(html))
        assert "<b>x" not in html


def test_the_map_is_described_in_its_folder() -> None:
    readme = Path(__file__).parents[3] / "memviz/ui/components/rank_map/README.md"
    value = rank_map_value(summary_of((Rank(0, row("rank0.pickle")),)))
    assert [name for name in value if f"`{name}`" not in readme.read_text() and name != "label"] == []


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_ranks(tmp_path_factory.mktemp("recorded") / "job", 5, rank3=8 * MiB)


def open_all(context: Context, folder: Path) -> Session:
    return opened(*map(load_trace, sorted(folder.iterdir())), context=context)[1]


def is_there(context: Context, session: Session) -> bool:
    return show(context, session)[0]["visible"]


def test_the_tab_is_there_where_ranks_are(context: Context, folder: Path, tmp_path: Path) -> None:
    assert not is_there(context, Session())
    session = open_all(context, folder)
    assert is_there(context, session)
    assert sorted(open_ranks(context, session)) == [0, 1, 2, 3, 4]
    for name in ("step100.pickle", "step200.pickle"):
        written(tmp_path, name)
    assert not has_ranks(context, open_all(context, tmp_path))


def test_the_ranks_are_shared_as_a_page_a_table_and_json(context: Context, folder: Path, tmp_path: Path) -> None:
    files = shared_files(context, open_all(context, folder), 0)
    for name, write in files.values():
        write(tmp_path / name)
    page = (tmp_path / "ranks.html").read_text()
    text = words(page.partition("<script")[0])
    assert missing(text, "5 ranks", "128 MiB", "rank 3") == [] and "Outliers 1" in text
    assert page.count("data-set=") == len(re.findall("data-act=.rank", page)) > 0
    rows = list(csv.DictReader((tmp_path / "ranks.csv").read_text().splitlines()))
    assert [row["rank"] for row in rows] == ["0", "1", "2", "3", "4"]
    found = json.loads((tmp_path / "ranks.json").read_text())
    assert [str(row["peak_bytes"]) for row in found["ranks"]] == [row["peak_bytes"] for row in rows]
    assert shared_files(context, Session(), 0) == {}


def test_what_is_open_is_drawn(context: Context, folder: Path) -> None:
    verdict, value, one, lists, failed, chosen = draw(context, open_all(context, folder), None)
    assert words(verdict).startswith("Highest peak of 5 ranks: 128 MiB, on rank 3.")
    assert value["ranks"] == [0, 1, 2, 3, 4] and (value["chosen"], chosen) == (3, None)
    assert words(one).startswith("Rank 3")
    assert "Outliers 1" in words(lists) and failed == ""
    assert draw(context, Session(), None) == ["", {}, "", "", "", None]


def test_a_chosen_card_is_answered_in_the_headline(context: Context, folder: Path) -> None:
    session = open_all(context, folder)
    for card in ("", "an unknown card"):
        assert "On " not in words(draw(context, session, None, 0, card)[0])
    assert (
        missing(words(draw(context, session, None, 0, "T4")[0]), "Tesla T4", "14.74 GiB", "5 ranks", "may not fit")
        == []
    )
    big = [load_trace(written(folder.parent, f"big.rank{number}.pickle", more=18 << 30)) for number in range(2)]
    session = opened(*big, context=context)[1]
    assert (
        missing(
            words(draw(context, session, None, 0, "T4")[0]),
            "Tesla T4",
            "14.74 GiB",
            "rank 0",
            "step 1",
            "runs out of memory",
        )
        == []
    )


def test_what_is_open_and_no_rank_of_these_is_said(context: Context, tmp_path: Path) -> None:
    """A second run's ranks have the same numbers: each number is listed once, and the files left out are counted."""
    session = open_all(context, write_ranks(tmp_path / "job", 3))
    for name in ("rank1.later.pickle", "run.rank5.pickle"):
        session = session.with_opened(open_trace(context.store, load_trace(written(tmp_path, name))))
    verdict, value, _, _, failed, _ = draw(context, session, None)
    assert value["ranks"] == [0, 1, 2, 5] and "1 file was skipped." in words(verdict)
    assert "Not open here: ranks 3-4." in words(failed)
    assert missing(words(failed), "rank1.later.pickle", "run.rank1.pickle", "rank 1", "Left out") == []


def test_of_two_files_of_a_rank_page_and_folder_take_the_same(context: Context, tmp_path: Path) -> None:
    folder = write_ranks(tmp_path / "job", 2)
    written(folder, "run.rank0.oom.pickle", more=64 * MiB)
    _, value, *_ = draw(context, open_all(context, folder), None)
    assert value["peaks"] == [rank.row.peak_bytes for rank in read(folder).ranks]


def test_a_rank_leads_to_its_trace_and_to_compare(context: Context, folder: Path) -> None:
    session = open_all(context, folder)
    keys = {number: trace.key for number, trace in open_ranks(context, session).items()}
    assert words(draw(context, session, 1)[2]).startswith("Rank 1")
    after, tab = pressed(context, session, {"act": "open-rank", "rank": "2"})
    assert (after.chosen, tab) == (keys[2], "explore")
    after, tab = pressed(context, session, {"act": "compare-rank", "rank": "3"})
    assert (after.compared, tab) == ((keys[1], keys[3]), "compare")


@pytest.mark.parametrize("data", [{}, {"rank": "99"}, {"rank": "-1"}, {"rank": "x" * 50}, {"act": "open-rank"}])
def test_what_no_button_says_changes_nothing(context: Context, folder: Path, data: dict[str, str]) -> None:
    session = open_all(context, folder)
    assert pressed(context, session, {"act": "open-rank", **data}) == (session, None)


def test_ranks_that_were_given_are_read_when_somebody_wants_them(folder: Path) -> None:
    given: RankSummary = read(folder)
    context = Context(TraceStore(), given_ranks=given)
    assert is_there(context, Session())
    session, tab = pressed(context, Session(), {"act": "compare-rank", "rank": "3"})
    assert tab == "compare"
    assert [trace.name for trace in session.opened] == ["run.rank1", "run.rank3"]
    again, _ = pressed(context, session, {"act": "open-rank", "rank": "3"})
    assert again.opened == session.opened and again.current is not None and again.current.name == "run.rank3"


def test_a_file_that_has_gone_is_said(tmp_path: Path) -> None:
    folder = write_ranks(tmp_path / "job", 3)
    context = Context(TraceStore(), given_ranks=read(folder))
    (folder / "run.rank1.pickle").unlink()
    with pytest.raises(gr.Error, match="The file does not exist"):
        pressed(context, Session(), {"act": "open-rank", "rank": "1"})


def test_of_many_that_come_together_the_first_is_looked_at(context: Context, folder: Path) -> None:
    keys = [context.store.add(load_trace(path)) for path in sorted(folder.iterdir())]
    session = on_upload(context, Session(), {"stored": keys[0]})
    session = on_upload(context, session, {"stored": keys[1], "beside": "1"})
    session = on_upload(context, session, {"stored": " ".join(keys[2:]), "beside": "1"})
    assert [trace.key for trace in session.opened] == keys
    assert session.chosen == keys[0]
    assert on_upload(context, Session(), {"stored": keys[1], "beside": "1"}).chosen == keys[1]


@pytest.mark.slow
def test_a_table_that_was_brought_is_drawn_and_opens_nothing_of_its_places(
    context: Context, folder: Path, tmp_path: Path
) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    table = tmp_path / "ranks.parquet"
    gather_ranks(Gathering((str(folder),), output=table, processes=1))
    key = context.tables.add(table.name, ranks_of_table(table, table.name))
    session = on_upload(context, Session(), {"stored": key})
    assert is_there(context, session) and not session.refused and not session.opened
    values = draw(context, session, None)
    assert values[1]["chosen"] == 3 and "5 ranks" in words(values[0])
    assert "Open in Explore" not in str(values)
    with pytest.raises(gr.Error, match="no longer open"):
        pressed(context, session, {"act": "open-rank", "rank": "3"})
    row = traces_html(session, context.of, context.tables.get(session.table))
    assert "ranks.parquet" in words(row) and "5 ranks" in words(row)
    closed = session_after(context, session, {"act": "close", "key": session.table})
    assert not is_there(context, closed)


def test_all_are_closed_at_once(context: Context, folder: Path) -> None:
    session = session_after(context, open_all(context, folder), {"act": "close-all"})
    assert session == Session() and not is_there(context, session)


@pytest.mark.parametrize("second", ["run.rank", "other.rank"])
def test_a_second_job_is_told_apart_and_compared(context: Context, tmp_path: Path, second: str) -> None:
    """Under the same names, or under others."""
    session = open_all(context, write_ranks(tmp_path / "job", 3))
    for number in range(4):
        path = written(tmp_path, f"{second}{number}.pickle", more=24 * MiB * (number == 1))
        session = session.with_opened(open_trace(context.store, load_trace(path)))
    verdict, value, _, lists, failed, _ = draw(context, session, None)
    assert value["peaks"] == [120 * MiB] * 3 and failed == ""
    assert re.search(
        r"1 120 MiB 144 MiB \+24\.0 MiB probably activation.* all 360 MiB 384 MiB \+24\.0 MiB", words(lists)
    )
    names = ["run.rank* (A)", "run.rank* (B)"] if second == "run.rank" else ["run", "other"]
    assert words(verdict).startswith(f"{' '.join(names)} Highest peak of 3 ranks")
    assert f"{names[1]} peaks 24.0 MiB higher than {names[0]}: 144 MiB at most (rank 1, before rank 0)." in words(
        verdict
    )
    verdict, value, one, *_ = draw(context, session, None, 1)
    assert (
        value["peaks"] == [120 * MiB, 144 * MiB, 120 * MiB, 120 * MiB] and 'aria-pressed="true">' + names[1] in verdict
    )
    assert 'data-job="1"' in one
    after, _ = pressed(context, session, {"act": "open-rank", "rank": "1", "job": "1"})
    assert after.chosen == session.opened[4].key
    closed = session
    for opened_later in session.opened[3:]:
        closed = session_after(context, closed, {"act": "close", "key": opened_later.key})
    assert draw(context, closed, None, 1)[1]["peaks"] == [120 * MiB] * 3
