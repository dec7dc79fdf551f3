"""The command line as people and scripts use it: in a second process."""

from __future__ import annotations

import fcntl
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from memviz import __version__
from memviz.commands import COMMANDS
from memviz.commands.command_line import columns_of_terminal
from memviz.trace.load import load_trace
from memviz.units import bytes_text
from tests.commands.answers import answer, written
from tests.second_process import memviz
from tests.traces import alloc, block, free, segment, snapshot

ROOT = Path(__file__).parents[2]


def test_without_segments_what_is_reserved_is_not_said_to_be_nothing(tmp_path: Path) -> None:
    for segments, is_known in (([], False), ([segment(0, 2048, [block(0, 512)])], True)):
        path = tmp_path / f"rank{int(is_known)}.pickle"
        path.write_bytes(pickle.dumps(snapshot([alloc(0, 512)], segments)))
        said = "2.00 KiB at" if is_known else "not known"
        assert f"reserved  {said}" in memviz("summary", path).stdout
        assert ("512 B live, reserved not known\n" in memviz("peak", path).stdout) is not is_known
        compared = "peak reserved 2.00 KiB" if is_known else "reserved not known"
        assert memviz("diff", path, path).stdout.count(compared) == 2
        markdown = memviz("diff", path, path, "--markdown").stdout
        assert ("| not known |" in markdown) is not is_known and ("| 2.00 KiB |" in markdown) is is_known
        for command in ("summary", "peak"):
            answer = json.loads(memviz(command, path, "--json").stdout)
            assert answer.get("devices", [answer])[0]["reserved_is_known"] is is_known
    both = json.loads(memviz("ranks", tmp_path, "--json").stdout)
    assert [rank["reserved_is_known"] for rank in both["ranks"]] == [False, True]


def test_a_summary_of_one_device_has_no_notes_of_another(tmp_path: Path) -> None:
    both = tmp_path / "both.pickle"
    traces = [[alloc(0, 512)], [*free(512, 512), *free(4096, 512)]]
    both.write_bytes(pickle.dumps({"segments": [], "device_traces": traces}))
    every, first, second = (
        [note["text"] for note in answer("summary", both, *chosen)["notes"]]
        for chosen in ((), ("--device", "0"), ("--device", "1"))
    )
    assert set(first) < set(every) > set(second)
    assert any("Device 1" in text for text in second) and not any("Device 1" in text for text in first)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["report", *["small.pickle"] * 9, "-o", "x.html"], "A report shows at most 8 snapshots, not 9."),
        (
            ["export", "small.pickle", "-o", "x.pickle", "--table", "stacks"],
            "--table needs a CSV file, but x.pickle is pickle.",
        ),
        (["export", "small.pickle", "-o", "x.xyz"], "Add --format"),
        (["diff", "small.pickle"], "two or more files"),
        *(
            (["open", "small.pickle", f"--port={port}"], f"'{port}' is not a port: use 0 to 65535")
            for port in (-1, 65536, "http")
        ),
    ],
    ids=lambda each: " ".join(each)[-40:] if isinstance(each, list) else "",
)
def test_what_makes_no_sense_is_refused_and_writes_nothing(small: Path, words: list[str], said: str) -> None:
    done = memviz(*words, folder=small.parent)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert os.listdir(small.parent) == ["small.pickle"]


def test_a_report_never_takes_the_place_of_a_recording(small: Path, tmp_path: Path) -> None:
    before = small.read_bytes()
    plain = tmp_path / "plain"
    plain.write_bytes(before)
    for recording, place, why in (
        (small, small, "small.pickle is the recording itself."),
        (plain, plain, "plain is the recording itself."),
        (small, tmp_path / "other.pickle.gz", "Use a name with .html."),
    ):
        done = memviz("report", recording, "-o", place)
        assert (done.returncode, why in done.stderr) == (2, True)
    assert small.read_bytes() == plain.read_bytes() == before


@pytest.mark.slow
def test_report_is_one_page_without_network(small: Path, larger: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert memviz("report", small, larger, "-o", page).returncode == 0
    text = page.read_text()
    assert page.stat().st_size < 3_000_000
    assert "default-src 'none'" in text
    assert set(re.findall(r"https?:[^\"' )]*", text)) == {"http://www.w3.org/2000/svg"}, "the name of a kind of shape"
    assert "2.93 KiB higher than" in text


@pytest.mark.parametrize("name", ["again.pickle", "again.json", "again.pickle.gz", "again.json.gz"])
def test_export_and_read_again(small: Path, tmp_path: Path, name: str) -> None:
    assert memviz("export", small, "-o", tmp_path / name).returncode == 0
    before, after = load_trace(small), load_trace(tmp_path / name)
    assert after.devices == before.devices
    assert sorted(after.strings) == sorted(before.strings)


def test_where_nothing_stands_out_it_says_so(tmp_path: Path) -> None:
    weights = written(tmp_path, "weights.pickle", [alloc(0, 1000), alloc(4096, 3000)])
    assert memviz("findings", weights).stdout == "Device 0: no findings.\n"
    assert answer("findings", weights) == {"device": 0, "findings": []}


@pytest.mark.slow
def test_estimates_say_what_the_late_start_of_a_recording_keeps_from_them() -> None:
    late = ROOT / "sample_traces" / "late-start.pickle.gz"
    start = bytes_text(answer("summary", late)["devices"][0]["start_bytes"])
    limits = [line for line in memviz("findings", late, "--estimates").stdout.splitlines() if start in line]
    assert len(limits) == 1, "said once, and only where estimates are shown"
    assert start not in memviz("findings", late).stdout


@pytest.mark.slow
def test_a_broken_pipe_is_no_error_and_no_answer() -> None:
    """The reader closes early, as `head -c 10` does; the pipe holds less than is written."""
    sample = ROOT / "sample_traces" / "training.pickle.gz"
    command = [sys.executable, "-m", "memviz", "peak", str(sample), "--json", "--top", "0"]
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    with subprocess.Popen(command, cwd=ROOT, stdout=writing, stderr=subprocess.PIPE, text=True) as process:
        os.close(writing)
        # The first brace may come alone.
        read = b""
        while len(read) < 10 and (more := os.read(reading, 10 - len(read))):
            read += more
        os.close(reading)
        assert process.communicate()[1] == ""
    assert (len(read), process.returncode) == (10, 141)


def test_every_command_has_help() -> None:
    top = memviz("--help").stdout
    for name, words in COMMANDS.items():
        assert name in top
        assert words in " ".join(memviz(name, "--help").stdout.split())


def test_what_the_driver_had_free_may_not_be_known(tmp_path: Path) -> None:
    oom = {"action": "oom", "device_free": 2**64 - 1, "size": 2**30, "stream": 0}
    path = written(tmp_path, "oom.pickle", [alloc(0, 100), oom])
    (told,) = answer("summary", path)["devices"][0]["oom"]
    assert told["device_free_bytes"] is None
    said = memviz("summary", path).stdout
    assert "not known" in said and "EiB" not in said


SAMPLE = ROOT / "sample_traces" / "training.pickle.gz"
STARTED = """
import atexit, os, sys
atexit.register(lambda: print(*sorted(sys.modules), file=sys.stderr))
sys.argv = ["memviz", *sys.argv[1:]]
from memviz.__main__ import run
run()
"""


def loaded_by(*arguments: object) -> set[str]:
    """Return the modules loaded in a fresh process after the command."""
    command = [sys.executable, "-c", STARTED, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout
    return set(done.stderr.split())


def ours(modules: set[str], *parts: str) -> set[str]:
    return {name for name in modules if name.startswith(tuple(f"memviz.{part}" for part in parts))}


def test_a_summary_loads_what_it_needs() -> None:
    loaded = loaded_by("summary", SAMPLE)
    assert "numpy" in loaded
    assert not loaded & {"numpy.ma", "zipfile", "lzma", "hashlib", "shutil", "traceback", "threading"}
    assert not ours(loaded, "analysis.comparing")
    # The layers of a forward are what findings and actions count them as.
    known = {"analysis.findings.finding", "analysis.actions.layers"}
    assert {f"memviz.{name}" for name in known} <= ours(loaded, "analysis.findings", "analysis.actions")
    unneeded = ours(loaded, "allocator", "analysis.findings.ranking", "figures", "ui", "runner", "ranks")
    # The bill of a device takes the CUDA context from a table.
    assert unneeded == {"memviz.allocator", "memviz.allocator.context"}


def test_version_and_help_fit_the_terminal() -> None:
    def printed(option: str) -> str:
        asked = [sys.executable, "-m", "memviz", option]
        environment = {**os.environ, "COLUMNS": "40"}
        return subprocess.run(asked, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout

    assert printed("--version") == f"memviz {__version__}\n"
    text = printed("--help")
    assert all(name in text for name in COMMANDS) and max(map(len, text.splitlines())) <= 38


@pytest.mark.parametrize("columns", ["", "0", "-3", "many", "44", "132"])
def test_the_terminal_is_as_wide_as_python_finds_it(columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert columns_of_terminal() == shutil.get_terminal_size().columns
