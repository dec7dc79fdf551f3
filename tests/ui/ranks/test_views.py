"""The Ranks tab, as text and as the map's value."""

import base64
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from memviz.ranks.numbers import Rank, by_mesh, mesh_of
from memviz.ranks.places import Place
from memviz.ranks.reduce_rank import row_of
from memviz.ranks.row import FailedFile, RankRanOut, RankRow
from memviz.ranks.summary import NOTHING, RankSummary, aligned, summary_of
from memviz.ui.ranks.answer import rank_map_value
from memviz.ui.ranks.views import failed_html, groups_html, one_rank_html, outliers_html, ranks_verdict_html, spans_text
from tests.facts import missing
from tests.ranks.files import annotations, rank_events
from tests.traces import MiB, trace_of
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
