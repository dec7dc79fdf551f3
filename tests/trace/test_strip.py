import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memviz.analysis.callstacks.sites import frame_kinds
from memviz.trace.model import Trace
from memviz.trace.reserved import (
    LARGE_SEGMENT,
    NO_DIVISIONS,
    SLOTS,
    divisions_of,
    large_segment_of,
    max_split_size_of,
    round_sizes,
)
from memviz.trace.strip import short_paths, strip_paths
from memviz.trace.write import snapshot_dict, write_json
from tests.real import each_real_file, read_once, requires_real
from tests.trace.test_write import pickled
from tests.traces import MiB, alloc, block, frame, read, segment, snapshot, trace_of

FORWARD = '  File "/home/alice/secret/model.py", line 3, in forward\n    return self.net(x)\n'


def exported(trace: Trace) -> bytes:
    text = io.StringIO()
    write_json(trace, text)
    return pickled(trace) + text.getvalue().encode()


@pytest.mark.parametrize(
    ("path", "short"),
    [
        ("/home/alice/project/train.py", "train.py"),
        ("C:\\Users\\alice\\project\\train.py", "train.py"),
        ("/Users/alice/train.py", "train.py"),
        ("/root/project/train.py", "train.py"),
        ("~/train.py", "train.py"),
        ("train.py", "train.py"),
        ("/usr/local/src/python-3.12/Objects/call.c", "call.c"),
        ("/opt/venv/lib/python3.12/site-packages/torch/hub.py", "lib/python3.12/site-packages/torch/hub.py"),
        ("/usr/local/dist-packages/vllm/worker.py", "dist-packages/vllm/worker.py"),
        ("C:\\Users\\alice\\Lib\\site-packages\\torch\\_tensor.py", "Lib/site-packages/torch/_tensor.py"),
        ("/home/alice/miniconda3/lib/python3.11/runpy.py", "lib/python3.11/runpy.py"),
        ("/home/alice/pytorch/torch/_tensor.py", "pytorch/torch/_tensor.py"),
        ("/home/alice/envs/x/bin/torchrun", "bin/torchrun"),
        ("/tmp/torchinductor_alice/3u/c3uxh.py", "torchinductor_user/3u/c3uxh.py"),
        ("/opt/torch/home/alice/train.py", "train.py"),
        ("/home/alice/lib/python3.11/site-packages/alice/x.py", "lib/python3.11/site-packages/user/x.py"),
        ("<frozen runpy>", "<frozen runpy>"),
        ("<ipython-input-3-abc>", "<ipython-input-3-abc>"),
        ("<eval_with_key>.3 from /home/alice/x.py:5 in wrapped", "<eval_with_key>.3 from x.py:5 in wrapped"),
        ("??", "??"),
        ("", ""),
        ("/", "?"),
    ],
)
def test_a_path_is_reduced_to_what_says_which_file_it_is(path: str, short: str) -> None:
    assert short_paths([path]) == {path: short}


@pytest.mark.parametrize(
    "paths",
    [
        {"/home/a/p/train/main.py": "train/main.py", "/home/a/p/test/main.py": "test/main.py"},
        {"/home/a/main.py": "main.py", "/home/b/main.py": "2/main.py"},
        {"/home/a/p/main.py": "p/main.py", "/home/a/main.py": "main.py"},
        {"/scratch/alice/main.py": "main.py", "/home/alice/p/main.py": "p/main.py"},
        {"/home/a/x/p/main.py": "x/p/main.py", "/home/a/y/p/main.py": "y/p/main.py", "/home/a/other.py": "other.py"},
    ],
)
def test_files_of_one_name_keep_what_tells_them_apart(paths: dict[str, str]) -> None:
    assert short_paths(paths) == paths


parts = st.sampled_from(["alice", "home", "Users", "p", "main.py", "lib", "bin", "torch", "..", "", "~", "C:"])
absolute = st.lists(parts, min_size=1, max_size=6).map(lambda each: "/home/alice/" + "/".join(each))
anywhere = st.lists(parts, min_size=1, max_size=6).map("/".join)


@given(st.sets(absolute | anywhere, min_size=1, max_size=8))
def test_nobodys_name_is_in_any_folder(paths: set[str]) -> None:
    short = short_paths({*paths, "/home/alice/train.py"})
    for name in short.values():
        assert "alice" not in name.split("/")[:-1]
    own = [name for path, name in short.items() if not name.startswith(("lib/", "bin/", "torch/", "user/"))]
    assert len(set(own)) == len(own)


SECRET = "/home/alice/secret"
TRACE = trace_of(
    [
        alloc(
            4096,
            1000,
            frames=[frame("forward", f"{SECRET}/model.py", 3), frame("main", f"{SECRET}/train.py", 9)],
            forward_frames=[FORWARD],
            user_metadata="step 1",
            compile_context="N/A",
        )
    ],
    [segment(4096, 1024, [block(4096, 1024, 1000, frames=[frame("main", f"{SECRET}/train.py", 9)])])],
    external_annotations=[{"name": "epoch", "stage": "START", "device": 0, "time_us": 1}],
    memviz={
        "version": 1,
        "about": {"origin": "predicted", "on": "H200", "facts": {"command": f"python {SECRET}/train.py --lr=1/3"}},
    },
)


def test_no_text_of_a_home_folder_is_left() -> None:
    trace = replace(TRACE, about=replace(TRACE.about, source=f"{SECRET}/run.pickle"))
    stripped = strip_paths(trace)
    for word in (b"alice", b"secret", b"/home"):
        assert word in exported(trace)
        assert word not in exported(stripped)
    assert not any("alice" in text for text in stripped.strings)
    assert stripped.about.source == "run.pickle"
    assert stripped.about.facts == {"command": "python train.py --lr=1/3"}


def test_everything_but_the_folders_stays() -> None:
    event = snapshot_dict(strip_paths(TRACE))["device_traces"][0][0]
    assert event == {
        **snapshot_dict(TRACE)["device_traces"][0][0],
        "frames": [frame("forward", "model.py", 3), frame("main", "train.py", 9)],
        "forward_frames": ['  File "model.py", line 3, in forward\n    return self.net(x)\n'],
    }
    assert snapshot_dict(strip_paths(TRACE))["external_annotations"][0]["name"] == "epoch"


def test_frames_and_stacks_that_now_read_alike_become_one() -> None:
    files = ["/home/a/env1/site-packages/x.py", "/home/b/env2/site-packages/x.py"]
    trace = strip_paths(trace_of([alloc(i, 1, frames=[frame("f", file)]) for i, file in enumerate(files)]))
    assert (len(trace.stacks), trace.devices[0].events.stack.tolist()) == (1, [0, 0])


def test_a_stripped_trace_comes_back_from_its_file() -> None:
    stripped = strip_paths(read(snapshot([alloc(1, 1, frames=[frame("f", "/home/a/x.py")])])))
    assert read(snapshot_dict(stripped)) == stripped


def figures(trace: Trace) -> list[Any]:
    return [(device.events.size.tolist(), device.events.stack.tolist(), device.blocks) for device in trace.devices]


@requires_real
@each_real_file
def test_real_files_lose_their_authors_and_nothing_else(path: Path) -> None:
    trace = read_once(path)
    stripped = strip_paths(trace)
    assert figures(stripped) == figures(trace)
    assert np.array_equal(frame_kinds(stripped), frame_kinds(trace))
    text = pickled(stripped)
    homes = {part for file in trace.strings if "/home/" in file for part in file.split("/")[2:3]}
    assert b"/home/" not in text and b"/root/" not in text
    assert not any(f"/{name}/".encode() in text for name in homes)


def rounded(*sizes: int, divisions: tuple[int, ...] = NO_DIVISIONS) -> list[int]:
    return round_sizes(np.array(sizes), divisions).tolist()


def slots(**mib: int) -> tuple[int, ...]:
    """slots(m64=8) -> 8 divisions for sizes in [64, 128) MiB."""
    return divisions_of({"roundup_power2_divisions": {key[1:]: value for key, value in mib.items()}})


ALL_FOUR = (4,) * SLOTS


def test_a_slot_without_divisions_keeps_the_plain_rule() -> None:
    assert rounded(65 * MiB + 1, 129 * MiB + 1, divisions=slots(m64=8)) == [72 * MiB, 129 * MiB + 512]


def test_what_the_allocator_refuses_is_not_rounded() -> None:
    assert rounded(2**60 + 1, 2**62, divisions=ALL_FOUR) == [2**60 + 1, 2**62]


def by_hand(size: int, divisions: tuple[int, ...]) -> int:
    parts = divisions[min(max(size.bit_length() - 1 - 20, 0), SLOTS - 1)]
    step = 512
    if parts > 1 and size > 512 * parts:
        step = (1 << (size.bit_length() - 1)) // parts
    return max(512, -(-size // step) * step)


powers = st.sampled_from([0, 1, 2, 4, 8, 16, 32])


# Half of them beside a power of two, where the step changes.
sizes_beside = st.builds(lambda power, off: max(1, 2**power + off), st.integers(0, 58), st.integers(-1, 1))


@given(st.lists(st.integers(1, 2**59) | sizes_beside), st.lists(powers, min_size=SLOTS, max_size=SLOTS))
def test_it_agrees_with_the_rule_applied_one_size_at_a_time(sizes: list[int], parts: list[int]) -> None:
    assert rounded(*sizes, divisions=tuple(parts)) == [by_hand(size, tuple(parts)) for size in sizes]


@pytest.mark.parametrize("value", [None, 4, [4], {"1": "4", "2": 3, "4": -2, "8": 2**80, "16": True}])
def test_settings_that_pytorch_could_not_have_run_with_are_not_applied(value: object) -> None:
    assert divisions_of({"roundup_power2_divisions": value}) == NO_DIVISIONS


@pytest.mark.parametrize(("value", "limit"), [(-1, None), (2**64 - 1, None), (None, None), (128 * MiB, 128 * MiB)])
def test_an_unlimited_split_size_has_two_spellings(value: object, limit: int | None) -> None:
    assert max_split_size_of({"max_split_size": value}) == limit


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("", LARGE_SEGMENT),
        ("expandable_segments:True,large_segment_size_mb:64", 64 * MiB),
        ("large_segment_size_mb:0", LARGE_SEGMENT),
        ("large_segment_size_mb:9999999999999", LARGE_SEGMENT),
    ],
)
def test_the_large_segment_size_is_read_from_the_raw_settings(text: str, size: int) -> None:
    assert large_segment_of({"PYTORCH_CUDA_ALLOC_CONF": text}) == size
