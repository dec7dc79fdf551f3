"""The verdict on a predicted program, in words and figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.commands.test_predict import predict, said


@pytest.mark.slow
def test_what_decides_it_by_a_little_is_close_and_says_so(tmp_path: Path) -> None:
    """The context takes 0.19 to 0.50 of 23.64 GiB: 23 always fits, 23.3 only with the least context, 23.6 never."""
    body = "import sys, torch\ntorch.empty(int(sys.argv[1]) << 20, dtype=torch.uint8, device='cuda')\n"
    found = {}
    for mebibytes in (23_552, 23_860, 24_166):
        done = predict(tmp_path, body, arguments=(str(mebibytes),))
        found[mebibytes] = said(done)["cards"]["NVIDIA GeForce RTX 4090"]
        assert ("close on RTX 4090" in done.stderr) == (mebibytes == 23_860)
    assert found == {23_552: "yes", 23_860: "close", 24_166: "no"}
    done = predict(tmp_path, body, "--card", "RTX 4090", arguments=("23860",))
    limited = said(done)
    assert (limited["fits"], limited["fit"], limited["peak_reserved_without_limit_bytes"]) == (False, "no", None)
    assert "23.14 GiB to 23.45 GiB usable" in done.stderr and "0.19 to 0.50 GiB for the CUDA context" in done.stderr


def test_workspaces_that_are_not_counted_make_it_close(tmp_path: Path) -> None:
    body = "import torch\ntorch.nn.Conv2d(3, 64, 7, padding=3).cuda()(torch.empty(400, 3, 224, 224, device='cuda'))\n"
    done = predict(tmp_path, body, "--card", "T4")
    figures = said(done)
    error = figures["expected_error"]
    assert figures["peak_reserved_bytes"] + error["uncounted_bytes"] > 14 << 30
    assert (figures["fits"], figures["fit"]) == (True, "close") and "whether it fits is close" in done.stderr
    assert "±" not in done.stderr and "±" not in error["sentence"]


ALLOCATE = "torch.empty({}, dtype=torch.uint8, device='cuda')"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (ALLOCATE.format("1 << 40"), "does not fit: "),
        ("held = [" + ALLOCATE.format("128 << 20") + " for _ in range(400)]", "does not fit: "),
        (
            "torch.cuda.set_per_process_memory_fraction(0.25)\n" + ALLOCATE.format("8 << 30"),
            "ran out of the share of NVIDIA GeForce RTX 4090 that it allows itself once",
        ),
    ],
    ids=["more than any card has", "piece by piece", "more than its own limit"],
)
def test_a_program_that_ran_out_does_not_fit_and_is_not_close(tmp_path: Path, body: str, words: str) -> None:
    done = predict(tmp_path, f"import torch\n{body}\n", "--card", "RTX 4090")
    figures = said(done)
    assert (figures["exit_status"], figures["fits"], figures["fit"]) == (1, False, "no")
    assert words in done.stderr and "close" not in done.stderr
    assert "what the CUDA context takes" not in done.stderr or "share" not in words


def test_reserved_on_the_card_stands_beside_reserved_without_a_limit(tmp_path: Path) -> None:
    """Two sizes, one after the other: the cache of the first goes back where memory is short."""
    body = """
import torch
for gibibytes in (13, 14):
    one = torch.empty(gibibytes << 30, dtype=torch.uint8, device="cuda")
    del one
"""
    keys = ("peak_reserved_on_card_bytes", "peak_reserved_without_limit_bytes", "peak_reserved_bytes")
    free, limited = said(predict(tmp_path, body)), said(predict(tmp_path, body, "--card", "RTX 4090"))
    assert [free[key] for key in keys] == [None, 27 << 30, 27 << 30] and free["fit"] is None
    assert [limited[key] >> 30 for key in keys] == [14, 27, 14] and limited["fit"] == "yes"
