"""The list of workloads: lookup by name, clear refusals, and no heavy import until one is built."""

import subprocess
import sys

import pytest

from memviz.errors import UsageError
from memviz.runner.plan import make_workload
from memviz.runner.workloads import WORKLOADS
from tests.facts import missing
from tests.house.repository import ROOT

NAMES = [kind.name for kind in WORKLOADS]


def test_each_is_found_by_its_name():
    assert len(set(NAMES)) == len(NAMES)
    assert [type(make_workload(name)) for name in NAMES] == list(WORKLOADS)


def test_settings_turn_the_knobs():
    workload = make_workload("ltx_video", {"video": "41x256x384", "batch": "2", "mode": "inference"})
    assert (workload.frames, workload.height, workload.width, workload.batch) == (41, 256, 384, 2)
    assert not workload.training


def test_an_unknown_one_is_named_with_the_likely_one():
    with pytest.raises(UsageError) as caught:
        make_workload("ltx-video")
    facts = ("no workload ltx-video", "Did you mean ltx_video?", ", ".join(NAMES), "config.json", "FILE.py:function")
    assert missing(caught.value, *facts) == []


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("feed_forward", {"batch": "-1"}, "feed_forward: batch is -1; the minimum is 1."),
        ("feed_forward", {"batch": "0"}, "feed_forward: batch is 0; the minimum is 1."),
        ("feed_forward", {"activation": "relu"}, "feed_forward: activation cannot be relu. Did you mean gelu? "),
        ("feed_forward", {"dropout": "1"}, "feed_forward: dropout is 1.0; it must be at least 0 and"),
        ("feed_forward", {"residual": "true", "dim_out": "128"}, "feed_forward: residual adds 4096 channels to 128;"),
        ("feed_forward", {"micro_batches": "4"}, "feed_forward: micro_batches is 4, but only training has"),
        ("ltx_video", {"frames": "80"}, "ltx_video: frames is 80; it must be 1 more than a multiple of 8, such as"),
        ("ltx_video", {"height": "500"}, "ltx_video: height is 500; it must be a multiple of 32, such as"),
        ("flux", {"resolution": "1024x7"}, "flux: width is 7; it must be a multiple of 16, such as 16, beca"),
        ("cogvideox", {"size": "7b"}, "cogvideox: size cannot be 7b. There are 2b, 5b."),
        ("cogvideox", {"frames": "2"}, "cogvideox: frames is 2; it must be 1 more than a multiple of 4, such as"),
        ("gpt2", {"sequence": "2048"}, "gpt2: sequence is 2048; GPT-2 knows 1024 positions."),
        ("gpt2", {"narrow": "5"}, "gpt2: narrow is 5; it must divide the 12 heads."),
        ("llama", {"cache": "true"}, "llama: cache is for inference only."),
        ("llama", {"dtype": "fp8"}, "llama: dtype cannot be fp8. There are bf16, fp16, fp32."),
        ("transformer_block", {"parts": "3"}, "transformer_block: 64 heads cannot be split into 3 equal parts."),
        ("transformer_block", {"inner": "28674"}, "transformer_block: inner 28674 cannot be split into 4 equal parts."),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_built(name, settings, message):
    with pytest.raises(UsageError) as caught:
        make_workload(name, settings)
    assert str(caught.value).startswith(message)


@pytest.mark.slow
def test_naming_a_workload_loads_no_library_of_models():
    """It takes them seconds, and a wrong knob is refused without."""
    program = """
import sys
from memviz.runner.workloads import WORKLOADS
made = [each() for each in WORKLOADS]
print(*sorted({"diffusers", "transformers"} & set(sys.modules)))
"""
    command = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "", "")
