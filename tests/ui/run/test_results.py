"""What the Run tab says about an order: the verdict in a sentence, a row for each variant, and nothing as markup."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from memviz.results.headline import Headline
from memviz.results.run import variants_headline
from memviz.runner.expected_error import ExpectedError
from memviz.runner.jobs.kept_runs import KeptRun
from memviz.runner.jobs.order import OrderStatus, Variant
from memviz.runner.parallel.parallelism import RankClass
from memviz.runner.request import Request
from memviz.runner.run import Fit, Run, Seconds
from memviz.ui.run.form_html import estimate_html, refused_html
from memviz.ui.run.published_examples import published_table_html
from memviz.ui.run.results import head_html, kept_value, results_html
from tests.runner.runs import GIB, run
from tests.ui.page import rows, words


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


LTX = (
    variant("Baseline", predicted(26.5, 610)),
    variant("Every 4th", predicted(22, 661)),
    variant("Every block", predicted(9.25, 813)),
)


@pytest.mark.parametrize(
    ("variants", "verdict"),
    [
        (LTX, ("Every 4th makes the step fit, with no optimizer.", "It saves 4,608 MiB for 8.4 % more work.")),
        (
            (variant("Baseline", predicted(20, 100)), variant("Half", predicted(10, 100))),
            ("Half saves 10.00 GiB, 50 % of what is reserved.", "It costs no more work."),
        ),
        (
            (variant("Baseline", predicted(30, 100)), variant("Half", predicted(25, 100))),
            (
                "Nothing here makes the step fit in 23.50 GiB, with no optimizer.",
                "The least that any variant reserves is 25.00 GiB.",
            ),
        ),
        (
            (variant("Baseline", predicted(10, 100)), variant("Worse", predicted(12, 100))),
            ("Nothing here saves memory: the baseline reserves 10.00 GiB.", ""),
        ),
        ((LTX[0],), ("This step reserves 26.50 GiB at its peak.", "It does not fit in 23.50 GiB, with no optimizer.")),
        (
            (variant("Baseline", predicted(26, 100, window="2 forward passes")), variant("Half", predicted(9, 100))),
            ("Half makes the forward pass fit.", "It saves 17.00 GiB for no more work."),
        ),
        ((variant("Baseline", None),), ("", "")),
        (
            (variant("Baseline", None, state="failed", phase="There is no workload x."),),
            ("There is no workload x.", ""),
        ),
        (
            (variant("Baseline", None, state="failed", what="refused", phase="tiny: batch must be at least 1"),),
            ("Nothing was run.", "tiny: batch must be at least 1"),
        ),
    ],
)
def test_the_verdict(variants: tuple[Variant, ...], verdict: tuple[str, str]) -> None:
    assert headline(variants) == Headline(*verdict)


def test_each_size_has_a_baseline_of_its_own() -> None:
    def sized(label: str, batch: str, reserved: float) -> Variant:
        made = variant(label, predicted(reserved, 100))
        return replace(made, request=replace(made.request, settings={"batch": batch}))

    variants = (
        sized("1: Baseline", "1", 8),
        sized("1: Half", "1", 6),
        sized("2: Baseline", "2", 20),
        sized("2: Half", "2", 10),
    )
    assert headline(variants).answer == "2: Half saves 10.00 GiB, 50 % of what is reserved."
    html = words(results_html(OrderStatus("x", variants)))
    assert html.count("baseline") == 2
    assert "\N{MINUS SIGN}2,048 MiB reserved" in html and "\N{MINUS SIGN}10.00 GiB reserved" in html


def test_sizes_alone_are_held_against_the_first() -> None:
    small, large = variant("Baseline", predicted(8, 100)), variant("Baseline", predicted(6, 100))
    sizes = tuple(
        replace(each, request=replace(each.request, settings={"batch": str(at)}))
        for at, each in enumerate((small, large))
    )
    assert headline(sizes).answer == "Baseline saves 2,048 MiB, 25 % of what is reserved."


def taken_away(variants: tuple[Variant, ...], chosen: int | None = None) -> tuple[str, str]:
    """The code and the command that stand below."""
    copied = re.findall(r'data-mv-copy="([^"]*)"', results_html(OrderStatus("x", variants), chosen))
    return ("", copied[0]) if len(copied) == 1 else (copied[0], copied[1])


def named(variants: tuple[Variant, ...]) -> tuple[Variant, ...]:
    return tuple(
        replace(each, run=replace(each.run, code=f"code {at}" if at else "", command=f"command {at}"))
        for at, each in enumerate(variants)
        if each.run is not None
    )


def test_code_and_command_are_those_of_the_variant_that_the_headline_names() -> None:
    assert headline(LTX).answer.startswith("Every 4th makes")
    assert taken_away(named(LTX)) == ("code 1", "command 1")
    nothing = (variant("Baseline", predicted(10, 100)), variant("Worse", predicted(12, 100)))
    assert taken_away(named(nothing)) == ("", "command 0")


def test_another_variant_can_be_chosen_by_its_name_and_its_bar() -> None:
    assert [taken_away(named(LTX), at)[1] for at in range(3)] == ["command 0", "command 1", "command 2"]
    html = results_html(OrderStatus("x", LTX), 2)
    pressed = re.findall(r'data-act="choose" data-number="(\d)" aria-pressed="(\w+)"', html)
    assert pressed == [("0", "false"), ("1", "false"), ("2", "true")]
    assert len(re.findall(r'mv-variant-middle" data-act="choose" data-number="(\d)"', html)) == 3


def test_what_fits_is_said_with_its_optimizer() -> None:
    def stepping(optimizer: Any) -> tuple[Variant, ...]:
        return tuple(
            replace(each, run=replace(each.run, request=Request("tiny", optimizer=optimizer)))
            for each in LTX
            if each.run is not None
        )

    assert headline(stepping("adamw")).answer == "Every 4th makes the step fit, with AdamW."
    assert "the step has AdamW" in words(head_html(OrderStatus("x", stepping("adamw"))))
    assert words(results_html(OrderStatus("x", LTX))).count("to spare, no optimizer") == 2
    assert "no optimizer" not in words(results_html(OrderStatus("x", stepping("adamw"))))


def test_on_a_card_that_it_nearly_fills_it_says_what_is_reserved_there() -> None:
    known = predicted(25.14, 100)
    squeezed = Fit(int(23.5 * GIB), True, int(22.69 * GIB), None, None, None, int(1.64 * GIB))
    only = (variant("Baseline", replace(known, fit=squeezed)),)
    assert str(headline(only)) == (
        "Without a limit this step reserves 25.14 GiB at its peak. It fits in 23.50 GiB, with no optimizer, "
        "where it gives back what is cached and reserves 22.69 GiB."
    )
    shown = words(results_html(OrderStatus("x", only)))
    assert "reserved on the card 22.69 GiB without a limit 25.14 GiB" in shown


def in_doubt(reserved: float, fit: str, **changes: Any) -> Run:
    known = predicted(reserved, 100)
    assert known.fit is not None
    unsure = replace(known.fit, fit=fit, overhead_bytes=GIB // 2, least_overhead_bytes=GIB // 4)
    return replace(known, fit=unsure, **changes)


def test_what_the_context_decides_is_called_close() -> None:
    only = (variant("Baseline", in_doubt(23.2, "close")),)
    assert headline(only).reason == "It is close, with no optimizer: 23.50 GiB to 23.75 GiB usable."
    html = results_html(OrderStatus("x", only))
    assert "≈ close 23.50 GiB to 23.75 GiB usable" in words(html)
    assert re.search(r'class="mv-limit" style="left:9\d\.\d+%;width:1\.\d+%"', html)
    sure = results_html(OrderStatus("x", (variant("Baseline", in_doubt(20, "yes")),)))
    assert "✓ fits" in words(sure) and "close" not in words(sure)


def test_of_what_makes_it_fit_the_sure_goes_before_the_close() -> None:
    tight, roomy = in_doubt(23.4, "close", flops=90), in_doubt(9, "yes", flops=120)
    base = variant("Baseline", predicted(30, 100))
    assert headline((base, variant("Tight", tight), variant("Roomy", roomy))).answer.startswith("Roomy makes")
    assert headline((base, variant("Tight", tight))).answer == (
        "Tight makes the step fit, with no optimizer, but it is close."
    )


def test_what_may_fit_is_said_before_what_does_not() -> None:
    known = in_doubt(23.6, "close")
    assert known.fit is not None and not known.fit.fits
    base = variant("Baseline", predicted(30, 100))
    said = headline((base, variant("Half", known), variant("Third", predicted(25, 90))))
    assert said.answer == "Half may make the step fit, with no optimizer: it is close."
    assert said.reason == "It reserves 23.60 GiB of 23.50 GiB to 23.75 GiB usable."


def test_how_true_it_is_likely_to_be_is_a_sentence_and_an_interval_on_the_bar() -> None:
    error = ExpectedError(0.0, 0.5, 2.0, 13, 0, "training")
    status = OrderStatus("x", (variant("Baseline", in_doubt(20, "yes", expected_error=error)),))
    assert error.sentence in words(head_html(status)) and "reserved ± 2.0 % (13" in error.sentence
    html = results_html(status)
    assert 'title="Likely reserved: 19.60 GiB to 20.40 GiB"' in html and "how far it may be off" in words(html)
    exact = replace(error, allocated=0.0, reserved=0.0)
    known = OrderStatus("x", (variant("Baseline", in_doubt(20, "yes", expected_error=exact)),))
    assert "mv-doubt" not in results_html(known)


def test_variants_with_equal_outputs_share_a_row() -> None:
    verdict = {
        "verdict": {"ok": True, "words": "bitwise equal, as claimed"},
        "outputs": [{"difference": {"absmax": 0}}],
    }
    alike = tuple(variant(name, predicted(9, 1, numerics=verdict)) for name in ("Every 4th", "Every 2nd"))
    html = results_html(OrderStatus("x", (LTX[0], *alike)))
    assert [row[0] for row in rows(html)[1:]] == ["same run twice", "Every 4th, Every 2nd"]
    assert words(html).count("output bitwise equal") == 2


def test_absmax_stands_beside_its_share_of_the_largest_value() -> None:
    """Of a run kept before that was a figure of its own, too."""
    sizes = {"absmax": 1.5e-4, "reference_absmax": 5e-4, "relative_l2": 0.008}
    verdict = {"verdict": {"ok": True, "words": "equal"}, "outputs": [{"difference": sizes}]}
    html = results_html(OrderStatus("x", (LTX[0], variant("Split", predicted(9, 1, numerics=verdict)))))
    assert rows(html)[-1][:4] == ["Split", "1.5e-04", "3.0e-01", "8.0e-03"]


def test_what_was_not_exercised_has_no_figures_and_no_tick() -> None:
    verdict = {"ok": None, "words": "not exercised: the picture is one tile", "short": "not exercised"}
    numerics = {"verdict": verdict, "outputs": [{"difference": {"absmax": 0, "relative_l2": 0}}]}
    html = results_html(OrderStatus("x", (LTX[0], variant("Tiles", predicted(9, 1, numerics=numerics)))))
    assert rows(html)[-1][:4] == ["Tiles", "–", "–", "–"]
    assert rows(html)[-1][4].startswith("not exercised: the picture is one tile")
    assert "output not exercised" in words(html)


def test_the_reduced_models_of_all_variants_are_named() -> None:
    known = [
        variant(
            name, predicted(9, 1, numerics={"on": f"reduced model {name}", "verdict": {"ok": True, "words": "equal"}})
        )
        for name in ("A", "B", "A")
    ]
    assert "reduced model A; reduced model B" in words(results_html(OrderStatus("x", (LTX[0], *known))))


def test_measured_runs_are_compared_by_their_seconds() -> None:
    slow = run(fit=None, flops=None, peak_reserved_bytes=2 * GIB, seconds=Seconds(1.2, 0, 10, "cuda events"))
    fast = run(fit=None, flops=None, peak_reserved_bytes=4 * GIB, seconds=Seconds(1.0, 0, 10, "cuda events"))
    both = (variant("Baseline", fast), variant("Small", slow))
    assert headline(both) == Headline("Small saves 2,048 MiB, 50 % of what is reserved.", "It costs 20 % more time.")


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


def test_what_fits_in_another_size_is_not_said_to_fit_nowhere() -> None:
    def of(batch: str, label: str, found: Run, *, baseline: bool) -> Variant:
        changes: Any = () if baseline else (("half", {}),)
        request = Request("tiny", {"batch": batch}, changes)
        return Variant(request, f"batch {batch}: {label}", state="done", run=found)

    sizes = (
        of("1", "Baseline", predicted(10, 100), baseline=True),
        of("1", "Half", predicted(8, 100), baseline=False),
        of("2", "Baseline", predicted(26, 100), baseline=True),
        of("2", "Half", predicted(27, 100), baseline=False),
    )
    assert headline(sizes) == Headline(
        "Nothing here makes batch 2 fit in 23.50 GiB, with no optimizer.",
        "The least that any variant of it reserves is 26.00 GiB.",
    )


@pytest.mark.parametrize(
    ("what", "head"),
    [
        ("host memory", "stopped"),
        ("timeout", "stopped"),
        ("out of memory", "ran out of memory"),
        ("refused", "not run"),
        ("exception", "failed"),
    ],
)
def test_what_was_stopped_is_not_said_to_have_failed(what: str, head: str) -> None:
    html = results_html(OrderStatus("x", (variant("a", None, state="failed", what=what, phase="Why."),)))
    assert f"{head}</b>" in html


def test_a_bug_comes_before_any_saving() -> None:
    verdict = {
        "ok": False,
        "words": "suspicious",
        "finding": "claims equal output up to rounding, but layer 0 differs.",
    }
    wrong = predicted(9, 100, numerics={"verdict": verdict})
    assert headline((LTX[0], variant("Split", wrong))) == Headline(
        "Split does not keep its word.",
        "It claims equal output up to rounding, but layer 0 differs.",
    )


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
    assert html.count("<li ") == len(variants)
    for each in ("does not fit", "3,072 MiB too much", "1,536 MiB to spare", "waiting", "building the model …"):
        assert each in html
    for each in ("its process died", "SIGKILL", "last words", "Open what was recorded", "Compare both"):
        assert each in html


def test_what_models_say_never_becomes_markup() -> None:
    bad = "<img src=x onerror=alert(1)>"
    numerics = {"verdict": {"ok": True, "words": bad, "caution": bad}, "on": bad, "outputs": [{"difference": {}}]}
    known = predicted(9, 100, numerics=numerics, describes=bad, device=bad, notes=(bad,), command=bad, code=bad)
    died = variant("b", None, state="failed", what="killed", phase=bad, where=bad)
    status = OrderStatus("x", (variant(bad, known, amiss=bad), died))
    estimate = estimate_html(variant(bad, known))
    kept = kept_value((KeptRun("1", bad, replace(known, device=bad), Path("x")),))["html"]
    row = {"case": bad, "figure": bad, "published": None, "ours": 1.0, "difference_percent": None, "note": bad}
    table = published_table_html("checkpointing", [row], fault=bad)
    for html in (head_html(status), results_html(status), estimate, refused_html(bad), kept, table):
        assert "<img" not in html
        assert "&lt;img" in html


@pytest.mark.parametrize(
    "numerics",
    [{"error": "no loss"}, {}, {"verdict": 3}, {"outputs": [3]}, {"outputs": [{"difference": {"absmax": "inf"}}]}],
)
def test_odd_numerics_break_nothing(numerics: dict[str, Any]) -> None:
    """A run that comes out of a file can say anything."""
    assert "<li" in results_html(OrderStatus("x", (LTX[0], variant("odd", predicted(9, 1, numerics=numerics)))))


def test_the_published_table_is_computed_on_demand() -> None:
    assert published_table_html("", None) == ""
    assert "Compute it" in published_table_html("checkpointing", None)
    row = {"case": "none", "figure": "reserved GiB", "published": 26.719, "ours": 26.5, "difference_percent": -0.82}
    html = published_table_html(
        "checkpointing", [{**row, "note": "<b>"}, {**row, "published": None, "difference_percent": None, "note": ""}]
    )
    assert "26.719" in html and "-0.82 %" in html and "&lt;b&gt;" in html
    assert "it broke" in published_table_html("checkpointing", [], fault="it broke")
    half = published_table_html("checkpointing", [{**row, "note": ""}], waiting=True)
    assert "26.719" in half and "1 done" in half


def test_without_kept_runs_nothing_is_shown() -> None:
    assert kept_value(())["html"] == ""


def test_the_spread_stands_beside_the_seconds() -> None:
    seconds = Seconds(0.0123, 0.0004, 244, "GPU events", 0.0121, 0.0125)
    html = results_html(OrderStatus("x", (variant("Baseline", run(fit=None, seconds=seconds)),)))
    assert "12.3 ms 12.1 ms to 12.5 ms for the middle half of 244 steps" in words(html)


def test_of_many_gpus_the_classes_stand_below_each_with_its_timeline(tmp_path: Path) -> None:
    classes = (RankClass((0, 1), 2 * GIB, 3 * GIB, GIB, 5, "yes"), RankClass((2, 3), 4 * GIB, 5 * GIB, GIB, 7, "no"))
    found = predicted(5, 100, rank=2, classes=classes)
    own = tmp_path / "run-0.pickle"
    for name in ("run-0.pickle", "run-0.rank0.pickle"):
        (tmp_path / name).touch()
    status = OrderStatus("order", (variant("Baseline", found, file=own),))
    html = results_html(status)
    answer = headline(status.variants).answer
    assert answer == "This step reserves 5,120 MiB at its peak on rank 2, the fullest of 4 GPUs."
    assert "rank 2 of 4, the fullest" in words(html)
    assert [row[:5] for row in rows(html) if row[0].startswith("Ranks ")] == [
        ["Ranks 2, 3", "4,096 MiB", "5,120 MiB", "7 B", "✗ does not fit"],
        ["Ranks 0, 1", "2,048 MiB", "3,072 MiB", "5 B", "✓ fits"],
    ]
    assert re.findall(r'data-rank="(\d)"', html) == ["2", "0"]
    assert "mv-rank-classes" not in results_html(OrderStatus("order", LTX))


def test_what_the_host_holds_stands_beside_the_peak() -> None:
    holds = predicted(20, 100, pinned_host_bytes=3 * GIB)
    assert "pinned on the host 3,072 MiB" in words(results_html(OrderStatus("x", (variant("Waits", holds),))))
    none = predicted(20, 100, pinned_host_bytes=0)
    assert "pinned" not in words(results_html(OrderStatus("x", (variant("Baseline", none),))))


def test_a_peak_of_loading_is_marked_wherever_it_is_shown() -> None:
    only = (variant("Cast", predicted(22.5, 100, peak_while_loading=True)),)
    assert "at its peak, while loading" in headline(only).answer
    assert re.search(r"allocated [\d.]+ GiB while loading", words(results_html(OrderStatus("x", only))))
    plain = OrderStatus("x", (variant("Cast", predicted(22.5, 100)),))
    assert "while loading" not in words(results_html(plain)) + words(head_html(plain))


def test_weights_that_stay_on_the_host_take_nothing_of_the_bar() -> None:
    known = predicted(2, 100, weights_bytes=22 * GIB, weights_at_peak_bytes=0)
    parts = re.findall(r'mv-kind" style="[^"]*width:([\d.]+)%', results_html(OrderStatus("x", (variant("A", known),))))
    assert float(parts[0]) == 0 < float(parts[1])


def test_bar_and_interval_end_at_what_is_reserved_on_the_card() -> None:
    """Without a limit it would be above the card's line, beside the word that it fits."""
    error = ExpectedError(0.0, 0.5, 2.0, 13, 0, "training")
    fit = Fit(int(23.5 * GIB), True, int(22.69 * GIB), None, None, None, int(1.64 * GIB))
    run = replace(predicted(25.14, 100), fit=fit, expected_error=error)
    html = results_html(OrderStatus("x", (variant("Baseline", run),)))
    assert 'title="Likely reserved: 22.24 GiB to 23.14 GiB"' in html
