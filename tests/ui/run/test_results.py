"""Tests of results: the verdict, a row for each variant, pictures, and no text as markup."""

from __future__ import annotations

import base64
import pickle
import re
import struct
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memviz.predictor.expected_error import ExpectedError, Fit
from memviz.results.headline import Headline
from memviz.results.run import variants_headline
from memviz.runner.jobs.kept_runs import KeptRun
from memviz.runner.jobs.service import OrderStatus, Variant
from memviz.runner.parallel.parallelism import RankClass
from memviz.runner.request import Request
from memviz.runner.run import Run, Seconds
from memviz.ui.run.form_html import estimate_html, refused_html
from memviz.ui.run.published_examples import published_table_html
from memviz.ui.run.results import RunPictures, head_html, kept_runs_value, pictures_html, results_html
from tests.runner.runs import GIB, run
from tests.traces import MiB, alloc, frame, free, snapshot
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
        (
            (variant("Baseline", measured(1.0, 4)), variant("Small", measured(1.2, 2))),
            ("Small saves 2,048 MiB, 50 % of what is reserved.", "It costs 20 % more time."),
        ),
        (
            (
                sized("batch 1: Baseline", "1", 10),
                sized("batch 1: Half", "1", 8),
                sized("batch 2: Baseline", "2", 26),
                sized("batch 2: Half", "2", 27),
            ),
            (
                "Nothing here makes batch 2 fit in 23.50 GiB, with no optimizer.",
                "The least that any variant of it reserves is 26.00 GiB.",
            ),
        ),
        (
            (LTX[0], variant("Split", predicted(9, 100, numerics={"verdict": WRONG}))),
            ("Split does not keep its word.", "It claims equal output up to rounding, but layer 0 differs."),
        ),
        (
            (
                variant("Baseline", predicted(30, 100)),
                variant("Half", in_doubt(23.6, "close")),
                variant("Third", predicted(25, 90)),
            ),
            (
                "Half may make the step fit, with no optimizer: it is close.",
                "It reserves 23.60 GiB of 23.50 GiB to 23.75 GiB usable.",
            ),
        ),
        (
            (
                variant("Baseline", predicted(30, 100)),
                variant("Tight", in_doubt(23.4, "close", flops=90)),
                variant("Roomy", in_doubt(9, "yes", flops=120)),
            ),
            ("Roomy makes the step fit, with no optimizer.", "It saves 21.00 GiB for 20 % more work."),
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
    assert headline(variants).answer == "2: Half saves 10.00 GiB, 50 % of what is reserved."
    html = words(results_html(OrderStatus("x", variants)))
    assert html.count("baseline") == 2
    assert "\N{MINUS SIGN}2,048 MiB reserved" in html and "\N{MINUS SIGN}10.00 GiB reserved" in html


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


def test_code_and_command_are_those_of_the_variant_that_the_headline_names() -> None:
    assert headline(LTX).answer.startswith("Every 4th makes")
    assert copied_texts(with_commands(LTX)) == ("code 1", "command 1")
    nothing = (variant("Baseline", predicted(10, 100)), variant("Worse", predicted(12, 100)))
    assert copied_texts(with_commands(nothing)) == ("", "command 0")


def test_another_variant_can_be_chosen_by_its_name_and_its_bar() -> None:
    assert [copied_texts(with_commands(LTX), at)[1] for at in range(3)] == ["command 0", "command 1", "command 2"]
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


def test_what_the_context_decides_is_called_close() -> None:
    only = (variant("Baseline", in_doubt(23.2, "close")),)
    assert headline(only).reason == "It is close, with no optimizer: 23.50 GiB to 23.75 GiB usable."
    html = results_html(OrderStatus("x", only))
    assert "≈ close 23.50 GiB to 23.75 GiB usable" in words(html)
    assert re.search(r'class="mv-limit" style="left:9\d\.\d+%;width:1\.\d+%"', html)
    sure = results_html(OrderStatus("x", (variant("Baseline", in_doubt(20, "yes")),)))
    assert "✓ fits" in words(sure) and "close" not in words(sure)


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
    """In runs saved by earlier versions absmax was a figure of its own, too."""
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
    assert html.count("<li ") == len(variants)
    for each in ("does not fit", "3,072 MiB too much", "1,536 MiB to spare", "waiting", "building the model …"):
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
    estimate = estimate_html(variant(bad, known))
    kept = kept_runs_value((KeptRun("1", bad, replace(known, device=bad), Path("x")),))["html"]
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
    """A run read from a file can hold any value."""
    assert "<li" in results_html(OrderStatus("x", (LTX[0], variant("odd", predicted(9, 1, numerics=numerics)))))


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
    """Without the limit the interval would pass the card's line, next to the verdict that it fits."""
    error = ExpectedError(0.0, 0.5, 2.0, 13, 0, "training")
    fit = Fit(int(23.5 * GIB), True, int(22.69 * GIB), None, None, None, int(1.64 * GIB))
    run = replace(predicted(25.14, 100), fit=fit, expected_error=error)
    html = results_html(OrderStatus("x", (variant("Baseline", run),)))
    assert 'title="Likely reserved: 22.24 GiB to 23.14 GiB"' in html


def test_where_what_is_not_counted_makes_it_close_that_is_said() -> None:
    error = ExpectedError(0.0, 1.0, 4.0, 7, 63, "training", not_counted=("cuDNN workspaces",), least_growth=1.38)
    known = replace(in_doubt(10.84, "close"), expected_error=error)
    said = headline((variant("Baseline", known),)).reason
    assert error.uncounted_words in said and "23.50 GiB to 23.75 GiB usable" in said
    near = replace(in_doubt(23.2, "close"), expected_error=error)
    assert "not counted" not in headline((variant("Baseline", near),)).reason


def recorded_variant(folder: Path, label: str, peak: int) -> Variant:
    file = folder / f"{label}.pickle"
    file.write_bytes(pickle.dumps(snapshot([alloc(at * MiB, MiB) for at in range(peak)])))
    return Variant(Request("feed_forward"), label, state="done", run=predicted(peak, 1), file=file)


def heights_shown(variants: list[Variant], pictures: RunPictures) -> list[float]:
    """Return the height of each box that is coloured in its last column."""
    html = pictures_html(variants, pictures.of(variants))
    images = re.findall(r'<img src="([^"]*)"[^>]*style="height:([0-9.]+)%"', html)
    return [_share_drawn(address) * float(height) / 100 for address, height in images]


def _share_drawn(address: str) -> float:
    """Return the coloured share of the picture's last column."""
    png = base64.b64decode(address.partition(",")[2])
    width, height = struct.unpack(">II", png[16:24])
    body = png[png.index(b"IDAT") + 4 :]
    rows = np.frombuffer(zlib.decompressobj().decompress(body), np.uint8).reshape(height, 1 + 4 * width)
    return float((rows[:, -1] > 0).mean())


def test_they_stand_on_one_scale_the_highest_just_below_the_edge(tmp_path: Path) -> None:
    variants = [recorded_variant(tmp_path, "Baseline", 100), recorded_variant(tmp_path, "Half", 50)]
    pictures = RunPictures()
    found = pictures.of(variants)
    assert {number: each.live_bytes for number, each in found.items()} == {0: 100 * MiB, 1: 50 * MiB}
    assert np.allclose(heights_shown(variants, pictures), [1 / 1.04, 0.5 / 1.04], atol=0.02)


def test_its_legend_names_what_is_drawn_also_what_is_gone_at_the_peak(tmp_path: Path) -> None:
    file = tmp_path / "step.pickle"
    engine = frame("torch::autograd::Engine::thread_main()", "??", 0)
    brief = [alloc(0, 40 * MiB, frames=[engine]), *free(0, 40 * MiB)]
    file.write_bytes(pickle.dumps(snapshot([*brief, alloc(1 << 40, 50 * MiB)])))
    step = Variant(Request("feed_forward"), "Baseline", state="done", run=predicted(50, 1), file=file)
    (picture,) = RunPictures().of([step]).values()
    assert (picture.live_bytes, picture.kinds) == (50 * MiB, {"temporary", "unknown"})
    assert "temporary" in words(pictures_html([step], {0: picture}))


def test_a_higher_one_that_arrives_later_moves_the_scale_of_all(tmp_path: Path) -> None:
    pictures, one = RunPictures(), recorded_variant(tmp_path, "Baseline", 50)
    (alone,) = heights_shown([one], pictures)
    both = heights_shown([one, recorded_variant(tmp_path, "More", 100)], pictures)
    assert np.isclose(both[0] * 2, alone, atol=0.04)


def test_what_is_not_there_has_no_picture_and_names_stay_text(tmp_path: Path) -> None:
    evil = recorded_variant(tmp_path, "Baseline", 3)
    evil = Variant(evil.request, "<img src=x onerror=alert(1)>", state="done", run=evil.run, file=evil.file)
    gone = Variant(evil.request, "gone", state="done", run=evil.run, file=tmp_path / "gone.pickle")
    waiting = Variant(evil.request, "waiting")
    variants = [evil, gone, waiting]
    html = pictures_html(variants, RunPictures().of(variants))
    assert re.findall(r'data-number="(\d+)"', html) == ["0"]
    assert "<img src=x" not in html and "&lt;img src=x" in html
    assert pictures_html(variants, {}) == ""
