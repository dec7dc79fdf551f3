"""Results of runs and searches: the verdict, rows, differences, the search's picture and map, and no text as markup."""

import re
from collections.abc import Sequence
from dataclasses import replace
from html import unescape as html_unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from memviz.allocator.context import NCCL_FACT
from memviz.errors import UsageError
from memviz.predictor.expected_error import ExpectedError, Fit
from memviz.results.headline import Headline
from memviz.results.run import variants_headline
from memviz.runner.jobs.kept_runs import KeptRun
from memviz.runner.jobs.service import OrderStatus, SearchOrder, SearchStatus, Variant
from memviz.runner.output_check.difference import MARGIN
from memviz.runner.request import RankClass, Request, Run, Seconds
from memviz.ui.run.answer import RunAnswers
from memviz.ui.run.differences import differences_html
from memviz.ui.run.fit_results import fit_head_html, fit_html, map_html, picture_html
from memviz.ui.run.form import FormFields, RunRequests, search_order
from memviz.ui.run.form_html import form_html, refused_html
from memviz.ui.run.published_examples import published_table_html
from memviz.ui.run.results import head_html, kept_runs_value
from memviz.ui.run.results import results_html as html_of_results
from tests.facts import missing
from tests.results.test_fit import told
from tests.runner.fit.ways import way as tried
from tests.runner.runs import GIB, run
from tests.ui.page import elements, rows, words


def results_html(status: OrderStatus, shown: int | None = None) -> str:
    return html_of_results(status, len(status.variants) - 1 if shown is None else shown)


def headline(variants: Sequence[Variant]) -> Headline:
    return variants_headline(variants).headline


def predicted(reserved: float, flops: int, usable: float = 23.5, **changes: Any) -> Run:
    fits = reserved <= usable
    fit = Fit(
        usable_bytes=int(usable * GIB),
        fits=fits,
        peak_reserved_bytes=int(min(reserved, usable) * GIB),
        event=None if fits else 812,
        requested_bytes=None if fits else 5,
        allocated_bytes=None if fits else 7,
        too_much_bytes=int((reserved - usable) * GIB),
    )
    peak = int(reserved * GIB)
    return run(peak_reserved_bytes=peak, peak_allocated_bytes=peak - GIB, flops=flops, fit=fit, seconds=None, **changes)


def variant(label: str, found: Run | None, **more: Any) -> Variant:
    state = "done" if found is not None else "waiting"
    changes = () if label.endswith("Baseline") else (("half", {}),)
    return Variant(Request("tiny", optimizations=changes), label, **{"state": state, "run": found, **more})


def in_doubt(reserved: float, fit: str, **changes: Any) -> Run:
    known = predicted(reserved, 100)
    assert known.fit is not None
    unsure = replace(known.fit, fit=fit, overhead_bytes=GIB // 2, least_overhead_bytes=GIB // 4)
    return replace(known, fit=unsure, **changes)


def sized(label: str, batch: str, reserved: float) -> Variant:
    made = variant(label, predicted(reserved, 100))
    return replace(made, request=replace(made.request, settings={"batch": batch}))


def measured(seconds: float, reserved: int) -> Run:
    return run(fit=None, flops=None, peak_reserved_bytes=reserved * GIB, seconds=Seconds(seconds, 0, 10, "cuda events"))


WRONG = {"ok": False, "words": "suspicious", "finding": "claims equal output up to rounding, but layer 0 differs."}
LTX = (
    variant("Baseline", predicted(26.5, 610)),
    variant("Every 4th", predicted(22, 661)),
    variant("Every block", predicted(9.25, 813)),
)


@pytest.mark.parametrize(
    ("variants", "verdict"),
    [
        (LTX, ("Every 4th makes the step fit, with no optimizer.", "It saves 4,608 MiB for 8.4 % more compute.")),
        (
            (variant("Baseline", predicted(30, 100)), variant("Half", predicted(25, 100))),
            ("No variant makes the step fit in 23.50 GiB, with no optimizer.", "Lowest: 25.00 GiB reserved."),
        ),
        (
            (variant("Baseline", predicted(10, 100)), variant("Worse", predicted(12, 100))),
            ("No variant saves memory: the baseline reserves 10.00 GiB.", ""),
        ),
        ((variant("Baseline", None),), ("", "")),
        (
            (variant("Baseline", None, state="failed", phase="There is no workload x."),),
            ("There is no workload x.", ""),
        ),
        (
            (variant("Baseline", None, state="failed", what="refused", phase="tiny: batch must be at least 1"),),
            ("Not run.", "tiny: batch must be at least 1"),
        ),
        (
            (variant("Baseline", measured(1.0, 4)), variant("Small", measured(1.2, 2))),
            ("Small saves 2,048 MiB, 50 % of reserved memory.", "It costs 20 % more time."),
        ),
        (
            (
                sized("batch 1: Baseline", "1", 10),
                sized("batch 1: Half", "1", 8),
                sized("batch 2: Baseline", "2", 26),
                sized("batch 2: Half", "2", 27),
            ),
            (
                "No variant makes batch 2 fit in 23.50 GiB, with no optimizer.",
                "Lowest of its variants: 26.00 GiB reserved.",
            ),
        ),
        (
            (LTX[0], variant("Split", predicted(9, 100, numerics={"verdict": WRONG}))),
            (
                "Split changes the outputs more than it claims.",
                "It claims equal output up to rounding, but layer 0 differs.",
            ),
        ),
        (
            (
                variant("Baseline", predicted(30, 100)),
                variant("Half", in_doubt(23.6, "close")),
                variant("Third", predicted(25, 90)),
            ),
            (
                "Half may make the step fit, with no optimizer, but it is close.",
                "It reserves 23.60 GiB of 23.50 GiB to 23.75 GiB usable.",
            ),
        ),
        (
            (
                variant("Baseline", predicted(30, 100)),
                variant("Tight", in_doubt(23.4, "close", flops=90)),
                variant("Roomy", in_doubt(9, "yes", flops=120)),
            ),
            ("Roomy makes the step fit, with no optimizer.", "It saves 21.00 GiB for 20 % more compute."),
        ),
    ],
)
def test_the_verdict(variants: tuple[Variant, ...], verdict: tuple[str, str]) -> None:
    assert headline(variants) == Headline(*verdict)


def test_each_size_has_a_baseline_of_its_own() -> None:
    variants = (
        sized("1: Baseline", "1", 8),
        sized("1: Half", "1", 6),
        sized("2: Baseline", "2", 20),
        sized("2: Half", "2", 10),
    )
    assert headline(variants).answer == "2: Half saves 10.00 GiB, 50 % of reserved memory."
    html = words(results_html(OrderStatus("x", variants)))
    assert "6,144 MiB \N{MINUS SIGN}2,048 MiB" in html and "10.00 GiB \N{MINUS SIGN}10.00 GiB" in html


def copied_texts(variants: tuple[Variant, ...], chosen: int | None = None) -> tuple[str, str]:
    """Return the code and the command to copy."""
    copied = re.findall(r'data-mv-copy="([^"]*)"', results_html(OrderStatus("x", variants), chosen))
    return ("", copied[0]) if len(copied) == 1 else (copied[0], copied[1])


def with_commands(variants: tuple[Variant, ...]) -> tuple[Variant, ...]:
    return tuple(
        replace(each, run=replace(each.run, code=f"code {at}" if at else "", command=f"command {at}"))
        for at, each in enumerate(variants)
        if each.run is not None
    )


def test_code_and_command_are_those_of_the_variant_that_is_shown() -> None:
    assert [copied_texts(with_commands(LTX), at)[1] for at in range(3)] == ["command 0", "command 1", "command 2"]
    assert [copied_texts(with_commands(LTX), at)[0] for at in range(3)] == ["", "code 1", "code 2"]
    html = results_html(OrderStatus("x", LTX), 2)
    pressed = re.findall(r'data-act="choose" data-number="(\d)" aria-pressed="(\w+)"', html)
    assert pressed == [("0", "false"), ("1", "false"), ("2", "true")]


def test_what_fits_is_said_with_its_optimizer() -> None:
    request = Request("tiny", optimizer="adamw")
    stepping = tuple(replace(each, run=replace(each.run, request=request)) for each in LTX if each.run is not None)
    assert headline(stepping).answer == "Every 4th makes the step fit, with AdamW."
    assert "with AdamW" in words(head_html(OrderStatus("x", stepping)))
    assert words(results_html(OrderStatus("x", LTX))).count("free, no optimizer") == 2
    assert "no optimizer" not in words(results_html(OrderStatus("x", stepping)))


def test_on_a_card_that_it_nearly_fills_or_that_the_context_decides_it_says_so() -> None:
    known = predicted(25.14, 100)
    squeezed = Fit(int(23.5 * GIB), True, int(22.69 * GIB), None, None, None, int(1.64 * GIB))
    only = (variant("Baseline", replace(known, fit=squeezed)),)
    facts = ("Without a limit", "25.14 GiB at the peak", "fits in 23.50 GiB", "no optimizer", "22.69 GiB are reserved")
    assert missing(headline(only), *facts) == []
    shown = words(results_html(OrderStatus("x", only)))
    assert missing(shown, "22.69 GiB", "25.14 GiB") == []
    only = (variant("Baseline", in_doubt(23.2, "close")),)
    assert headline(only).reason == "Close, with no optimizer: 23.50 GiB to 23.75 GiB usable."
    html = results_html(OrderStatus("x", only))
    assert missing(words(html), "23.50 GiB", "23.75 GiB") == []
    sure = results_html(OrderStatus("x", (variant("Baseline", in_doubt(20, "yes")),)))
    assert "✓ fits" in words(sure) and "close" not in words(sure)
    only = (variant("Cast", predicted(22.5, 100, peak_while_loading=True)),)
    assert "at the peak, while loading" in headline(only).answer
    assert re.search(r"[\d.]+ GiB while loading", words(results_html(OrderStatus("x", only))))
    plain = OrderStatus("x", (variant("Cast", predicted(22.5, 100)),))
    assert "while loading" not in words(results_html(plain)) + words(head_html(plain))


def test_the_expected_error_is_a_sentence_and_an_interval_of_what_is_reserved_on_the_card() -> None:
    error = ExpectedError(0.0, 0.5, 2.0, 13, 0, "training")
    status = OrderStatus("x", (variant("Baseline", in_doubt(20, "yes", expected_error=error)),))
    html = results_html(status)
    assert error.sentence in words(html) and "reserved ± 2.0 % (13" in error.sentence
    assert 'title="Likely reserved: 19.60 GiB to 20.40 GiB"' in html
    exact = replace(error, allocated=0.0, reserved=0.0)
    known = OrderStatus("x", (variant("Baseline", in_doubt(20, "yes", expected_error=exact)),))
    assert "Likely reserved" not in results_html(known)
    # Without the limit the interval would pass the card's line, next to the verdict that it fits.
    error = ExpectedError(0.0, 0.5, 2.0, 13, 0, "training")
    fit = Fit(int(23.5 * GIB), True, int(22.69 * GIB), None, None, None, int(1.64 * GIB))
    run = replace(predicted(25.14, 100), fit=fit, expected_error=error)
    html = results_html(OrderStatus("x", (variant("Baseline", run),)))
    assert 'title="Likely reserved: 22.24 GiB to 23.14 GiB"' in html
    error = ExpectedError(0.0, 1.0, 4.0, 7, 63, "training", not_counted=("cuDNN workspaces",), least_growth=1.38)
    known = replace(in_doubt(10.84, "close"), expected_error=error)
    said = headline((variant("Baseline", known),)).reason
    assert error.uncounted_words in said and missing(said, "23.50 GiB", "23.75 GiB") == []
    near = replace(in_doubt(23.2, "close"), expected_error=error)
    assert "not counted" not in headline((variant("Baseline", near),)).reason


@pytest.mark.parametrize(
    ("changes", "short"),
    [
        ({}, "± 2.0 %"),
        ({"not_covered": ("fft",)}, "± 2.0 % of recordings"),
        ({"like_card": False}, "± 2.0 % of recordings"),
        ({"not_counted": ("cuDNN workspaces",)}, "lower bound"),
        ({"recordings": 0}, "expected error unknown"),
    ],
)
def test_the_short_error_promises_no_more_than_the_recordings_show(changes: dict[str, Any], short: str) -> None:
    error = replace(ExpectedError(0.0, 0.5, 2.0, 13, 0, "training"), **changes)
    head = head_html(OrderStatus("x", (variant("Baseline", in_doubt(20, "yes", expected_error=error)),)))
    assert words(head).endswith(f"predicted for RTX 4090 {short}")
    assert error.sentence in html_unescape(head)


def compared(**numerics: Any) -> Run:
    return predicted(9, 1, numerics={"verdict": {"ok": True, "words": "equal up to rounding"}, **numerics})


def dots(html: str) -> list[tuple[float, bool]]:
    """Return the place of each dot in percent, and whether it is beyond rounding."""
    found = re.findall(r'mv-diff-dot( mv-beyond)?" style="left:([\d.]+)%"', html)
    return [(float(place), bool(beyond)) for beyond, place in found]


def test_each_output_and_loss_has_a_line_with_the_band_that_rounding_explains() -> None:
    def output(name: str, relative: float, expected: float) -> dict[str, Any]:
        return {"name": name, "difference": {"relative_l2": relative}, "rounding": {"expected": expected}, "noise": {}}

    weights = [output("a", 0.0, 1e-6), output("b", 1e-3, 1e-6)]
    run = compared(outputs=[output("logits", 1e-6, 1e-6), output("loss", 0.0, 1e-6)], gradients={"parameters": weights})
    html = differences_html(variant("Split", run))
    # Nine decades: 1e-6 is a third of the way, 1e-3 two thirds. Eight times what is expected is explained.
    assert dots(html) == [(33.33, False), (0.0, False), (66.67, True)]
    assert re.findall(r'mv-diff-band" style="width:([\d.]+)%"', html) == ["43.37"] * 3
    assert "1.0e-06 relative" in words(html) and "at b" in words(html) and "identical" in words(html)
    assert MARGIN == 8
    losses = {"reference": [8.0, 4.0], "again": [8.0, 4.0], "ours": [8.0, 4.4], "updates": 1e-6}
    html = differences_html(variant("Lora", compared(losses=losses)))
    assert "1.0e-01 relative at step 2" in words(html) and len(dots(html)) == 2
    verdict = {"ok": None, "words": "not exercised: the image fits in one tile", "short": "not exercised"}
    numerics = {"verdict": verdict, "outputs": [{"difference": {"absmax": 0, "relative_l2": 0}}]}
    html = results_html(OrderStatus("x", (LTX[0], variant("Tiles", predicted(9, 1, numerics=numerics)))))
    assert rows(html)[-1][3] == "not exercised" and not dots(html)
    assert missing(words(html), "not exercised", "fits") == []


def test_times_that_differ_by_less_than_their_steps_do_are_called_about_the_same() -> None:
    steady = run(fit=None, flops=None, peak_reserved_bytes=4 * GIB, seconds=Seconds(1.0, 0.1, 9, "x", 0.95, 1.05))
    near = run(fit=None, flops=None, peak_reserved_bytes=2 * GIB, seconds=Seconds(1.03, 0.1, 9, "x", 0.98, 1.08))
    far = run(fit=None, flops=None, peak_reserved_bytes=2 * GIB, seconds=Seconds(1.2, 0.1, 9, "x", 1.15, 1.25))
    kept_before = run(fit=None, flops=None, peak_reserved_bytes=2 * GIB, seconds=Seconds(1.03, 0.1, 9, "x"))
    for other, said in (
        (near, "It costs about the same time."),
        (kept_before, "It costs about the same time."),
        (far, "It costs 20 % more time."),
    ):
        both = (variant("Baseline", steady), variant("Small", other))
        assert headline(both).reason == said
        assert ("about the same time" in results_html(OrderStatus("x", both))) == ("about" in said)


def test_every_state_has_its_row(tmp_path: Path) -> None:
    variants = (
        replace(LTX[0], file=tmp_path / "a"),
        replace(LTX[1], file=tmp_path / "b", state="running", phase="comparing the outputs"),
        variant("waits", None),
        variant("runs", None, state="running", phase="building the model"),
        variant(
            "dies", None, state="failed", what="killed", phase="Its process was ended by SIGKILL.", where="last words"
        ),
        variant("stops", None, state="failed", what="exception", phase="boom", file=tmp_path / "c"),
    )
    html = results_html(OrderStatus("x", variants))
    assert html.count('<tr class="mv-variant ') == len(variants)
    for each in ("does not fit", "3,072 MiB over", "1,536 MiB free", "waiting", "building the model …"):
        assert each in html
    for each in ("its process died", "SIGKILL", "last words", "Open what was recorded", "Compare both"):
        assert each in html


def test_kept_runs_show_the_figures_of_their_files_and_none_of_an_earlier_version() -> None:
    squeezed = run(fit=Fit(23 * GIB, True, 3 * GIB, None, None, None, -19 * GIB))
    shown, earlier = (
        words(kept_runs_value((KeptRun("1", "a", squeezed, Path("x"), is_current),))["html"])
        for is_current in (True, False)
    )
    assert all(each in shown for each in ("3,072 MiB", "4,096 MiB on the card 3,072 MiB", "fits"))
    assert "Made by an earlier version" in earlier and "MiB" not in earlier


def test_what_models_say_never_becomes_markup() -> None:
    bad = "<img src=x onerror=alert(1)>"
    numerics = {"verdict": {"ok": True, "words": bad, "caution": bad}, "on": bad, "outputs": [{"difference": {}}]}
    known = predicted(9, 100, numerics=numerics, describes=bad, device=bad, notes=(bad,), command=bad, code=bad)
    died = variant("b", None, state="failed", what="killed", phase=bad, where=bad)
    status = OrderStatus("x", (variant(bad, known, amiss=bad), died))
    kept = kept_runs_value((KeptRun("1", bad, replace(known, device=bad), Path("x")),))["html"]
    row = {"case": bad, "figure": bad, "published": None, "ours": 1.0, "difference_percent": None, "note": bad}
    table = published_table_html("checkpointing", [row], fault=bad)
    way = {**ways()[1], "label": bad, "title": bad, "code": bad}
    search = fit_html(SearchStatus("id", ORDER, ways=(way,), answer={}), 24 * GiB, None)
    results = head_html(status), results_html(status), differences_html(status.variants[0])
    for html in (*results, refused_html(bad), kept, table, search):
        assert "<img" not in html
        assert "&lt;img" in html


@pytest.mark.parametrize(
    "numerics",
    [{"error": "no loss"}, {}, {"verdict": 3}, {"outputs": [3]}, {"outputs": [{"difference": {"absmax": "inf"}}]}],
)
def test_odd_numerics_break_nothing(numerics: dict[str, Any]) -> None:
    """A run read from a file can hold any value."""
    assert "mv-variant " in results_html(OrderStatus("x", (LTX[0], variant("odd", predicted(9, 1, numerics=numerics)))))


def test_of_many_gpus_the_classes_stand_below_each_with_its_timeline(tmp_path: Path) -> None:
    classes = (RankClass((0, 1), 2 * GIB, 3 * GIB, GIB, 5, "yes"), RankClass((2, 3), 4 * GIB, 5 * GIB, GIB, 7, "no"))
    found = predicted(5, 100, rank=2, classes=classes)
    own = tmp_path / "run-0.pickle"
    for name in ("run-0.pickle", "run-0.rank0.pickle"):
        (tmp_path / name).touch()
    status = OrderStatus("order", (variant("Baseline", found, file=own),))
    html = results_html(status)
    answer = headline(status.variants).answer
    assert missing(answer, "5,120 MiB at the peak", "on rank 2", "highest of 4 GPUs") == []
    assert "rank 2" in words(html)
    assert [row[:5] for row in rows(html) if row[0].startswith("Ranks ")] == [
        ["Ranks 2, 3", "4,096 MiB", "5,120 MiB", "7 B", "✗ does not fit"],
        ["Ranks 0, 1", "2,048 MiB", "3,072 MiB", "5 B", "✓ fits"],
    ]
    assert re.findall(r'data-rank="(\d)"', html) == ["2", "0"]
    assert "mv-rank-classes" not in results_html(OrderStatus("order", LTX))


def test_while_variants_run_the_newest_that_is_done_is_shown() -> None:
    waits = variant("Every 2nd", None, state="waiting")
    answers = SimpleNamespace(_chosen={})
    assert RunAnswers.shown(answers, OrderStatus("x", (*LTX[:2], waits))) == 1  # type: ignore[arg-type]
    assert RunAnswers.shown(answers, OrderStatus("x", LTX)) == variants_headline(LTX).number == 1  # type: ignore[arg-type]
    assert head_html(OrderStatus("x", (variant("Baseline", None, state="running"),))) == ""


def test_the_headline_has_the_color_of_the_variant_that_it_names() -> None:
    worse = (*LTX[:2], variant("Twice", predicted(30, 600)))
    marked = ["mv-does-not-fit" in head_html(OrderStatus("x", variants)) for variants in (worse, LTX[:1])]
    assert marked == [False, True]


def test_the_details_say_what_nvidia_smi_would_show() -> None:
    alone = run(device="NVIDIA A100 80GB", mode="predicted", peak_reserved_bytes=10 * GIB, fit=None)
    html = words(results_html(OrderStatus("x", (variant("Baseline", alone),))))
    assert missing(html, "NVIDIA A100 80GB", "10.38 GiB", "11.75 GiB") == [] and "NCCL" not in html
    group = replace(alone, provenance={NCCL_FACT: "2 of 8 ranks"})
    html = words(results_html(OrderStatus("x", (variant("Baseline", group),))))
    assert missing(html, "NCCL", "48.0 MiB", "2,688 MiB", "2 communicators") == []


GiB = 1 << 30
ORDER = SearchOrder(Request("gpt2"))
ASKED = RunRequests((Request("gpt2", {"batch": "4"}, (("checkpointing", {}),)),), ("Baseline",))


def ways() -> tuple[dict[str, Any], ...]:
    made = [
        told(tried(1, 30 * GiB, fits=False), "baseline"),
        told(tried(2, 20 * GiB), "split"),
        told(tried(4, 10 * GiB), "checkpointing"),
        told(tried(3, 25 * GiB, fits=False), "worse"),
    ]
    return tuple({**way, "command": "python -m memviz run", "code": "undo = x"} for way in made)


def places(html: str) -> list[tuple[float, float]]:
    styles = [element["style"] or "" for element in elements(html, "button", data_act="way") if element.get("style")]
    return [(float(x), float(y)) for style in styles for x, y in re.findall(r"left:([\d.]+)%;top:([\d.]+)%", style)]


def test_every_way_is_a_point_where_its_cost_and_its_peak_are() -> None:
    html = picture_html(ways(), 24 * GiB, 1)
    points = places(html)
    assert len(points) == 4
    by_cost = sorted(range(4), key=lambda number: points[number][0])
    assert by_cost == [0, 1, 3, 2]
    by_peak = sorted(range(4), key=lambda number: -points[number][1])
    assert by_peak == [2, 1, 3, 0]
    (card,) = elements(html, "i", class_="mv-fit-card")
    line = float(re.findall(r"top:([\d.]+)%", card["style"] or "")[0])
    assert points[3][1] < line < points[1][1]
    pressed = elements(html, "button", aria_pressed="true")
    assert [each["data-number"] for each in pressed] == ["1"]
    # The front and what is chosen can be reached by the keyboard; the rest is in the way there.
    assert [element["data-number"] for element in elements(html, "button", tabindex="0")] == ["0", "1", "2"]


def test_the_front_is_drawn_in_steps_and_the_axis_ends_at_the_costs_that_the_list_says() -> None:
    html = picture_html(ways(), 24 * GiB, None)
    (line,) = elements(html, "polyline")
    corners = [tuple(map(float, corner.split(","))) for corner in (line["points"] or "").split()]
    points = places(html)
    assert corners[0::2] == [points[number] for number in (0, 1, 2)]
    assert all(
        corner[0] == after[0] and corner[1] == before[1]
        for before, corner, after in zip(corners[::2], corners[1::2], corners[2::2], strict=False)
    )

    def unknown(flops: int) -> dict[str, Any]:
        cost = {"flops": flops, "bytes_moved": 10**12, "host_bytes": 0, "link_bytes": 10**12, "per": "step"}
        return {**ways()[1], "cost": {**cost, "seconds_low": None, "seconds_high": None}}

    both = (unknown(164 * 10**12), unknown(165 * 10**12))
    listed = [row[2] for row in rows(fit_html(SearchStatus("id", ORDER, ways=both, answer={}), 24 * GiB, None))[1:]]
    axis = words(picture_html(both, 24 * GiB, None))
    assert {text for text in listed if text.endswith(" T")} == {"166.00 T", "167.00 T"}
    assert "166.00 T" in axis and "167.00 T" in axis


def test_while_it_goes_on_the_front_so_far_stands_there_and_the_best_ones_code() -> None:
    status = SearchStatus("id", ORDER, done=4, of=9, ways=ways())
    html = fit_html(status, 24 * GiB, None)
    assert "mv-working" in html and "undo = x" in words(html)
    assert words(html).count("Split") and not elements(html, "table")
    assert "4 of 9 configurations tried" in words(fit_head_html(status, 24 * GiB))
    over = SearchStatus("id", ORDER, ways=ways(), answer={"tried": 4, "of": 9, "grid": None})
    table = rows(fit_html(over, 24 * GiB, 2))
    # The unit appears once, in the column head.
    assert table[0][2] == "A step, estimated" and table[1][2].endswith(" s")
    assert [row[0] for row in table[1:4]] == ["Baseline", "Split", "Checkpointing"]
    assert [row[0] for row in table[5:]] == ["Baseline", "Split", "Worse", "Checkpointing"]
    assert "✗ does not fit" in words(fit_html(over, 24 * GiB, 0)) and "✓ fits" in words(fit_html(over, 24 * GiB, 2))


def row(sequence: int, largest: int, **peaks: int) -> dict[str, Any]:
    by_batch = {name.removeprefix("of_"): peak * GiB for name, peak in peaks.items()}
    known = {"sequence": sequence, "largest_batch": largest, "next_fails": True}
    return {**known, "peak_reserved_without_limit_bytes": by_batch}


GRID = {
    "usable_bytes": 10 * GiB,
    "batches": [1, 2, 4, 8],
    "rows": [
        row(64, 5, of_1=1, of_2=3, of_4=9, of_8=18),
        row(128, 0, of_1=11),
        # What is cached goes back, so it may fit though it would reserve more without a limit.
        row(32, 8, of_8=11),
    ],
}


def test_the_border_is_where_it_stops_fitting_and_not_where_a_colour_ends() -> None:
    html = map_html(GRID)
    found = [[element.get("class") for element in elements(f"<tr{row}", "td")] for row in html.split("<tr")[2:]]
    inside, outside = "mv-within", "mv-over"
    assert found == [[inside, inside, inside, outside, None], [outside] * 4 + [None], [inside] * 4 + [None]]
    assert [row[-1] for row in rows(html)[1:]] == ["5", "none", "8"]
    assert [row[1:5] for row in rows(html)[1:]] == [
        ["1.0", "3.0", "9.0", "18.0"],
        ["11.0", "–", "–", "–"],
        ["", "", "", "11.0"],
    ]


def test_the_form_asks_for_a_search_of_the_workload_as_it_stands_and_keeps_what_was_chosen() -> None:
    order = search_order({"fit:keep": "training", "fit:largest": "batch", "fit:grid": True}, ASKED)
    assert (order.keep, order.largest, order.grid) == ("training", "batch", True)
    assert order.request == Request("gpt2", {"batch": "4"}, on="predict", numerics=False)
    assert search_order({}, ASKED) == SearchOrder(order.request)
    form = FormFields(workload="a", search={"fit:keep": "nothing", "fit:grid": True})
    row = {"name": "a", "title": "A", "sentence": "A.", "knobs": []}
    html = form_html(form, {"workloads": [row], "optimizations": [], "cards": []})
    chosen = [element["value"] for element in elements(html, "option") if "selected" in element]
    assert chosen[-2:] == ["nothing", ""]
    (grid,) = elements(html, "input", name="fit:grid")
    assert "checked" in grid


@pytest.mark.parametrize(
    ("fields", "asked", "said"),
    [
        ({"fit:keep": "everything"}, ASKED, "no such search"),
        ({"fit:largest": "layers"}, ASKED, "no such search"),
        ({}, RunRequests(), "Nothing was searched"),
        (
            {},
            RunRequests((Request("gpt2"), Request("gpt2", {"batch": "2"})), ("a", "b")),
            "needs one value for each knob",
        ),
    ],
)
def test_what_is_no_search_is_refused(fields: dict[str, Any], asked: RunRequests, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        search_order(fields, asked)


def test_a_search_that_was_stopped_shows_its_table_with_what_was_chosen() -> None:
    status = SearchStatus("id", ORDER, done=4, of=9, ways=ways(), failed="Cancelled.")
    table = rows(fit_html(status, 24 * GiB, None))
    assert [row[0] for row in table if row[-1].endswith(", chosen")] == ["Split", "Split"]
    assert missing(words(fit_head_html(status, 24 * GiB)), "4 of", "9 configurations") == []
    close = tuple({**way, "fit": "close"} for way in ways())
    assert "≈ close" in words(fit_html(SearchStatus("id", ORDER, ways=close), 24 * GiB, 1))
