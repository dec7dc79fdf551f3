"""Texts that would steer a terminal, streams that take nothing, files that cannot be written: words, and a status.

Status 1 is never among them: in `diff` it means that a peak grew.
"""

import errno
import io
import json
import os
import pickle
import pty
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from memviz.commands import command_line, explore, main, terminal
from memviz.commands.command import printable
from memviz.errors import UsageError
from memviz.text import escape_control_chars
from memviz.trace.write import replacing
from tests.marks import slow_rows
from tests.traces import alloc, event, frame, snapshot

ROOT = Path(__file__).parents[2]
ESCAPES = "\x1b[2J\x1b]0;title\x07\r\x08\x9b31m\u202e\u2066\u200f\x00\udc80"
SPOKEN = r"\x1b[2J\x1b]0;title\x07\x0d\x08\x9b31m\u202e\u2066\u200f\x00\udc80"


@pytest.fixture
def evil(tmp_path: Path) -> Path:
    """Its own name, a function's and an annotation's are all hostile."""
    path = tmp_path / "evil\x1b[31m\u202e.pickle"
    frames = [frame(ESCAPES.replace("\udc80", ""), f"/{ESCAPES[:5]}/a.py", 1)]
    # A free that waits is a finding.
    held = [alloc(0, 512, frames=frames, time_us=1), event("free_requested", 0, 512, time_us=2)]
    path.write_bytes(pickle.dumps(snapshot([*held, alloc(4096, 512, time_us=9)])))
    return path


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.pickle"
    path.write_bytes(pickle.dumps(snapshot([alloc(0, 512)])))
    return path


def memviz(*arguments: object, **more: Any) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, "-m", "memviz", *map(str, arguments)], env=environment, check=False, **more)


def is_harmless(text: str) -> bool:
    return all(each.isprintable() or each in "\n\t" for each in text)


def test_what_moves_a_cursor_or_turns_writing_round_is_spelled_out() -> None:
    assert escape_control_chars(f"a{ESCAPES}b\n\tä 日本 ✓") == f"a{SPOKEN}b\n\tä 日本 ✓"
    assert printable("a\tb\nc") == r"a\x09b\x0ac"
    assert escape_control_chars("\U000e0001") == r"\U000e0001"


@pytest.mark.parametrize(
    "more",
    [
        ["summary"],
        ["peak"],
        ["findings"],
        ["at", "--event", "0"],
        ["diff", "again"],
        ["replay"],
        ["summary", "--device", ESCAPES],
    ],
)
def test_no_command_lets_a_file_steer_the_terminal(
    evil: Path, more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    name, *rest = more
    status = main([name, str(evil), *[str(evil) if each == "again" else each for each in rest]])
    said = capsys.readouterr()
    assert is_harmless(said.out + said.err)
    # A replay names nothing of the file's.
    assert r"\x1b" in said.out + said.err or name == "replay"
    assert status == (2 if "--device" in rest else 0)


@pytest.mark.parametrize(
    "arguments",
    [
        [f"summary{ESCAPES}"],
        ["summary", f"{ESCAPES}.pickle"],
        ["summary", "x", f"--{ESCAPES}"],
        ["peak", "x", "--by", ESCAPES],
        ["peak", "x", "--top", ESCAPES],
        ["run", f"{ESCAPES}.py:{ESCAPES}"],
        ["record", "-o", "x.pickle", f"{ESCAPES.replace(chr(0), '')}.py"],
    ],
)
def test_errors_do_not_either(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert is_harmless(said.err) and "u202e" in said.err


def test_json_stays_json(evil: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["peak", str(evil), "--by", "stack", "--json"]) == 0
    out = capsys.readouterr().out
    assert out.isascii() and is_harmless(out)
    assert "\x1b[2J" in json.dumps(json.loads(out), ensure_ascii=False).encode().decode("unicode_escape")


def test_a_terminal_that_knows_ascii_alone_is_no_fault(monkeypatch: pytest.MonkeyPatch, small: Path) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", out)
    accented = small.rename(small.with_name("é日.pickle"))
    assert main(["summary", str(accented)]) == 0
    assert out.buffer.getvalue().startswith(rb"\xe9\u65e5.pickle")  # type: ignore[attr-defined]


def test_progress_on_a_terminal_is_one_line_that_goes(evil: Path) -> None:
    """On a real terminal: our own two codes, and none of the file's."""
    ours, theirs = pty.openpty()
    done = memviz("summary", evil, stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    shown = b""
    while True:
        # A terminal whose other end is closed ends in an error, and not in nothing.
        try:
            piece = os.read(ours, 4096)
        except OSError:
            break
        shown += piece
    os.close(ours)
    assert done.returncode == 0
    assert shown.endswith(b"\r\x1b[K")
    assert is_harmless(shown.decode().replace("\r\x1b[K", "").replace("\r\n", "\n"))


class Taken(io.StringIO):
    """A stream that takes nothing."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def write(self, text: str) -> int:
        raise OSError(self.number, os.strerror(self.number))


@pytest.mark.parametrize(
    ("number", "status", "words"),
    [
        (errno.ENOSPC, 74, "memviz: The output cannot be written (No space left on device).\n"),
        (errno.EBADF, 74, "memviz: The output cannot be written (Bad file descriptor).\n"),
        (errno.EPIPE, 141, ""),
    ],
)
@pytest.mark.parametrize("more", [["summary"], ["peak", "--json"], ["diff", "again", "--max-growth", "0"]])
def test_an_output_that_takes_nothing_is_never_status_1(
    monkeypatch: pytest.MonkeyPatch, small: Path, more: list[str], number: int, status: int, words: str
) -> None:
    monkeypatch.setattr(command_line, "discard_output", lambda: None)
    monkeypatch.setattr(sys, "stdout", Taken(number))
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    name, *rest = more
    assert main([name, str(small), *[str(small) if each == "again" else each for each in rest]]) == status
    assert sys.stderr.getvalue() == words  # type: ignore[attr-defined]


def test_nowhere_to_say_an_error_changes_no_status(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Taken(errno.ENOSPC))
    assert main(["summary", "missing.pickle"]) == 2


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("summary {small} > /dev/full", 74),
        *slow_rows(
            ("summary {small} >&-", 74),
            ("summary {small} 2>&-", 0),
            ("summary missing >&- 2>&-", 2),
            ("--help > /dev/full", 74),
        ),
    ],
)
def test_streams_that_are_full_or_closed_leave_no_traceback(small: Path, line: str, status: int) -> None:
    """Runs in its own process, because Python's messages at exit count too."""
    command = f"'{sys.executable}' -m memviz {line.format(small=small)}; echo status $? >&3"
    done = subprocess.run(
        ["bash", "-c", f"exec 3>&1; {{ {command}; }} 2>&1"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert f"status {status}\n" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert "Exception ignored" not in done.stdout + done.stderr


@pytest.mark.parametrize(("module", "status"), [("argparse", -signal.SIGINT), ("numpy", 130)])
def test_ctrl_c_while_importing_is_no_traceback(tmp_path: Path, module: str, status: int) -> None:
    """A module of that name interrupts where the command line, or one command, would import its own."""
    (tmp_path / f"{module}.py").write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nimport time\ntime.sleep(60)\n"
    )
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-m", "memviz", "summary", "x"], cwd=ROOT, env=environment, capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (status, b"")


@pytest.mark.parametrize(
    ("fault", "status", "words"),
    [
        (KeyboardInterrupt(), 130, ""),
        (MemoryError(), 2, "not have enough memory"),
        (OSError(errno.EACCES, "Permission denied", "a.pickle"), 2, "a.pickle cannot be used (Permission denied)"),
        (RuntimeError("\x1b[2J"), 70, r"\x1b[2J"),
        (RecursionError(), 70, "bug in memviz"),
    ],
)
def test_no_fault_ends_in_status_1(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    small: Path,
    fault: BaseException,
    status: int,
    words: str,
) -> None:
    def fails(*_: object) -> None:
        raise fault

    monkeypatch.setattr(explore, "open_trace", fails)
    assert main(["summary", str(small)]) == status
    said = capsys.readouterr().err
    assert words in said and is_harmless(said)


@pytest.fixture(params=["SIGTERM", "SIGHUP"])
def ending(request: pytest.FixtureRequest) -> Iterator[int]:
    """A signal with its default handler, as in a process of a terminal; `nohup` makes its child ignore SIGHUP."""
    number = getattr(signal, request.param)
    before = signal.signal(number, signal.SIG_DFL)
    yield number
    signal.signal(number, before)


def test_a_signal_that_ends_it_leaves_no_half_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, small: Path, ending: int
) -> None:

    def ends(trace: object, file: Any) -> None:
        file.write(b"half")
        os.kill(os.getpid(), ending)

    monkeypatch.setattr("memviz.commands.export.write_pickle", ends)
    assert main(["export", str(small), "-o", str(tmp_path / "out.pickle")]) == 128 + ending
    assert os.listdir(tmp_path) == [small.name]
    assert signal.getsignal(ending) is signal.SIG_DFL


# -- files that are written


def written(path: Path, content: bytes = b"new") -> None:
    with replacing(path) as file:
        file.write(content)


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("missing/out.pickle", r"missing/out.pickle cannot be written \(No such file or directory\). Make the folder"),
        ("file/out.pickle", r"cannot be written \(Not a directory\)"),
        ("", "is a folder. Name a file in it."),
        ("x" * 300, r"cannot be written \(File name too long\)"),
    ],
)
def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, where: str, words: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=words):
        written(tmp_path / where)
    assert os.listdir(tmp_path) == ["file"]


def test_the_longest_name_there_is_can_be_written(tmp_path: Path) -> None:
    written(tmp_path / ("x" * 255))
    assert (tmp_path / ("x" * 255)).read_bytes() == b"new"


def test_a_full_disk_leaves_the_older_file_and_no_half_one(tmp_path: Path) -> None:
    path = tmp_path / "out.pickle.gz"
    path.write_bytes(b"older")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(UsageError, match=r"out.pickle.gz cannot be written \(File too large\)"):
            written(path, os.urandom(1 << 20))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == {"out.pickle.gz": b"older"}


def test_a_device_and_a_link_stay_what_they_are(tmp_path: Path) -> None:
    link = tmp_path / "full"
    link.symlink_to("/dev/full")
    for path in (Path("/dev/full"), link):
        with pytest.raises(UsageError, match=r"full cannot be written \(No space left on device\)"):
            written(path, os.urandom(1 << 20))
    written(Path("/dev/null"))
    assert Path("/dev/null").is_char_device() and Path("/dev/full").is_char_device()
    assert link.is_symlink() and os.listdir(tmp_path) == ["full"]
    (tmp_path / "old").write_bytes(b"old")
    (tmp_path / "link").symlink_to("old")
    written(tmp_path / "link")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "old").read_bytes() == b"new"


COMMANDS_THAT_WRITE: dict[str, Callable[[Path, Path], list[object]]] = {
    "export": lambda small, out: ["export", small, "-o", out],
    "report": lambda small, out: ["report", small, "-o", out],
    "replay": lambda small, out: ["replay", small, "-o", out],
}


@pytest.mark.parametrize("name", COMMANDS_THAT_WRITE)
def test_every_command_that_writes_names_what_it_could_not(
    name: str, small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "missing" / ("out.html" if name == "report" else "out.pickle")
    assert main([str(each) for each in COMMANDS_THAT_WRITE[name](small, out)]) == 2
    assert f"{out} cannot be written" in capsys.readouterr().err
    assert os.listdir(tmp_path) == [small.name]


def test_words_of_a_run_are_harmless_too(capsys: pytest.CaptureFixture[str]) -> None:
    with terminal.harmless_streams():
        sys.stdout.write(ESCAPES)
        sys.stderr.writelines([ESCAPES, "\n"])
    said = capsys.readouterr()
    assert (said.out, said.err) == (SPOKEN, f"{SPOKEN}\n")


def test_a_recorded_script_finds_its_output_as_python_would_give_it(tmp_path: Path) -> None:
    """Closed, it is none: a script's print then does nothing, and is no fault."""
    (tmp_path / "train.py").write_text("import sys\nassert sys.stdout is None\nprint('nobody hears it')\n")
    program = (
        "import argparse, sys\nfrom memviz import commands\n"
        "from memviz.commands import record\n"
        "recorded = lambda *given: exec(open('train.py').read(), {}) or 0\n"
        "record.COMMANDS['record'] = record.Command(record._add_arguments, recorded, takes_over=True)\n"
        "sys.exit(commands.main(['record', '-o', 'x.pickle', 'train.py']))\n"
    )
    done = subprocess.run(
        ["bash", "-c", f"exec '{sys.executable}' -c \"$0\" >&-", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
