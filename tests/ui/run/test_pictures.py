"""Variants' memory side by side: what is drawn, of what, on one scale, and what a missing file costs."""

from __future__ import annotations

import base64
import pickle
import re
import struct
import zlib
from pathlib import Path

import numpy as np

from memviz.runner.jobs.order import Variant
from memviz.runner.request import Request
from memviz.ui.run.results import RunPictures, pictures_html
from tests.traces import MiB, alloc, frame, free, snapshot
from tests.ui.page import words
from tests.ui.run.test_results import predicted


def variant(folder: Path, label: str, peak: int) -> Variant:
    file = folder / f"{label}.pickle"
    file.write_bytes(pickle.dumps(snapshot([alloc(at * MiB, MiB) for at in range(peak)])))
    return Variant(Request("feed_forward"), label, state="done", run=predicted(peak, 1), file=file)


def heights_shown(variants: list[Variant], pictures: RunPictures) -> list[float]:
    """Of each box the share that has a colour in its last column."""
    html = pictures_html(variants, pictures.of(variants))
    images = re.findall(r'<img src="([^"]*)"[^>]*style="height:([0-9.]+)%"', html)
    return [_share_drawn(address) * float(height) / 100 for address, height in images]


def _share_drawn(address: str) -> float:
    """Of the picture's last column."""
    png = base64.b64decode(address.partition(",")[2])
    width, height = struct.unpack(">II", png[16:24])
    body = png[png.index(b"IDAT") + 4 :]
    rows = np.frombuffer(zlib.decompressobj().decompress(body), np.uint8).reshape(height, 1 + 4 * width)
    return float((rows[:, -1] > 0).mean())


def test_they_stand_on_one_scale_the_highest_just_below_the_edge(tmp_path: Path) -> None:
    variants = [variant(tmp_path, "Baseline", 100), variant(tmp_path, "Half", 50)]
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
    pictures, one = RunPictures(), variant(tmp_path, "Baseline", 50)
    (alone,) = heights_shown([one], pictures)
    both = heights_shown([one, variant(tmp_path, "More", 100)], pictures)
    assert np.isclose(both[0] * 2, alone, atol=0.04)


def test_what_is_not_there_has_no_picture_and_names_stay_text(tmp_path: Path) -> None:
    evil = variant(tmp_path, "Baseline", 3)
    evil = Variant(evil.request, "<img src=x onerror=alert(1)>", state="done", run=evil.run, file=evil.file)
    gone = Variant(evil.request, "gone", state="done", run=evil.run, file=tmp_path / "gone.pickle")
    waiting = Variant(evil.request, "waiting")
    variants = [evil, gone, waiting]
    html = pictures_html(variants, RunPictures().of(variants))
    assert re.findall(r'data-number="(\d+)"', html) == ["0"]
    assert "<img src=x" not in html and "&lt;img src=x" in html
    assert pictures_html(variants, {}) == ""
