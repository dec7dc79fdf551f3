"""Files that want the machine end in words, and odd ones in an answer, within 10 s of processor time (on a slow machine
as many more as it is slower) and 1.5 GiB."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.hostile.files import READ, REFUSED
from tests.hostile.limited import MEMORY

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="limits of one process are Linux's here"),
]
ROOT = Path(__file__).parents[2]
Answers = dict[str, dict[str, dict[str, Any]]]
_LONGEST = 2000
_REPORTED = (
    "three_hundred_devices",
    "out_of_memory_20_thousand_times",
    "annotations_that_nest_50_thousand_deep",
    "segments_that_overlap",
    "a_stack_of_400_thousand_frames",
)
_OPENED = ("twenty_thousand_stacks_of_300_frames", "a_million_annotations")
"""Files that are only opened: their size matters for reading alone."""
_EVERY_COMMAND = (
    "recursion_400_deep_with_600_leaves",
    "frames_that_share_a_name_of_4_mb",
    "halves_of_characters_in_json",
    "names_that_are_markup_escapes_and_bidi",
    "numbers_at_their_ends",
    "texts_of_every_place_are_long",
)


def commands(name: str, path: Path) -> Iterator[list[str]]:
    file, out = str(path), str(path.parent / "out")
    if name in REFUSED or name in _OPENED:
        yield ["summary", file]
        return
    deep = "four_thousand_stacks_of_900_random_frames"
    wanted = {
        "report": (*_EVERY_COMMAND, *_REPORTED, deep),
        "peak": (*_EVERY_COMMAND, deep),
        "diff": (*_EVERY_COMMAND, deep),
    }
    several = {
        "look": ["look", file],
        "report": ["report", file, "-o", f"{out}.html"],
        "export": ["export", file, "--strip-paths", "-o", f"{out}.json.gz"],
        "summary": ["summary", file],
        "peak": ["peak", file, "--by", "stack", "--top", "0"],
        "at": ["at", file, "--event", "0"],
        "diff": ["diff", file, file],
        "csv": ["export", file, "-o", f"{out}.csv"],
        "replay": ["replay", file, "--memory", "8GiB"],
    }
    yield from (each for key, each in several.items() if key == "look" or name in wanted.get(key, _EVERY_COMMAND))


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """The output of every command for every file, from one process that imports everything once."""
    folder = tmp_path_factory.mktemp("hostile")
    jobs: list[list[str]] = []
    for name, make in {**REFUSED, **READ}.items():
        path = folder / name
        path.write_bytes(make())
        jobs += commands(name, path)
    (folder / "jobs.json").write_text(json.dumps(jobs))
    # Threads of numpy's would take address space of their own.
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.hostile.limited", str(folder / "jobs.json")]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: Answers = {name: {} for name in {**REFUSED, **READ}}
    for job, line in zip(jobs, done.stdout.splitlines(), strict=True):
        found[Path(job[1]).name]["csv" if job[-1].endswith(".csv") else job[0]] = json.loads(line)
    return found


@pytest.mark.parametrize("name", REFUSED)
def test_a_file_that_wants_the_machine_is_refused_in_words(answers: Answers, name: str) -> None:
    said = answers[name]["summary"]
    assert said["status"] == 2, said
    assert said["said"].startswith(f"memviz: {name}: ") and len(said["said"]) < _LONGEST, said
    assert "this machine has free" not in said["said"], "it was met by the limit of memory, and not counted"
    assert said["seconds"] < said["most_seconds"] and said["memory"] < MEMORY, said


@pytest.mark.parametrize("name", READ)
def test_every_command_and_the_page_answer_within_their_limits(answers: Answers, name: str) -> None:
    for command, said in answers[name].items():
        assert said["status"] in ((0, 1) if command == "diff" else (0,)), (command, said)
        assert said["seconds"] < said["most_seconds"] and said["memory"] < MEMORY, (command, said)


def test_nothing_from_a_file_moves_the_cursor_of_a_terminal(answers: Answers) -> None:
    for command in ("summary", "peak", "at", "diff"):
        said = answers["names_that_are_markup_escapes_and_bidi"][command]["said"]
        assert "\x1b" not in said and "\u202e" not in said and "\x00" not in said, command
