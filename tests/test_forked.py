"""A forked process behaves like a started one, which the tests that use it rely on."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import forked

pytestmark = pytest.mark.skipif(not forked.CAN_FORK, reason="processes are forked on Linux alone")
SAYS = """
import json, os, sys, atexit
atexit.register(lambda: print("the end"))
print(json.dumps([sys.argv, os.getcwd(), os.environ.get("WORD"), os.environ.get("HOME"), os.getppid(), __name__]))
print(sys.stdin.read(), os.getsid(0) == os.getpid(), file=sys.stderr)
sys.exit(3)
"""


def both(arguments: list[str], words: str = "", **more: Any) -> list[tuple[int, str, str]]:
    """Status, output and errors of the program forked, and started."""
    found = []
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    for start in (forked.start, lambda arguments, **more: subprocess.Popen([sys.executable, *arguments], **more)):
        with start(arguments, text=True, **pipes, **more) as process:
            out, errors = process.communicate(words)
        found.append((process.returncode, out, errors))
    return found


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("way", ["code", "module", "file"])
def test_it_gets_what_it_is_given_and_says_how_it_ended(tmp_path: Path, way: str, apart: bool) -> None:
    (tmp_path / "says.py").write_text(SAYS)
    how = {"code": ["-c", SAYS], "module": ["-m", "says"], "file": [str(tmp_path / "says.py")]}[way]
    environment = {"WORD": "é", "PYTHONPATH": str(tmp_path), "PATH": os.environ["PATH"]}
    quick, plain = both([*how, "a", "b c"], "given", cwd=tmp_path, env=environment, start_new_session=apart)
    assert quick == plain
    assert quick[0] == 3 and f'"a", "b c"], "{tmp_path}", "\\u00e9", null, {os.getpid()}' in quick[1]
    assert quick[2] == f"given {apart}\n"


@pytest.mark.parametrize(
    ("last_act", "status"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("os.kill(os.getpid(), signal.SIGINT)", -signal.SIGINT),
        ("os.abort()", -signal.SIGABRT),
        ("os._exit(5)", 5),
        ("raise KeyError", 1),
        ("sys.exit('words')", 1),
        ("sys.exit(258)", 2),
        ("sys.exit()", 0),
        ("pass", 0),
    ],
)
def test_it_ends_as_it_would(last_act: str, status: int) -> None:
    quick, plain = both(["-c", f"import os, signal, sys\n{last_act}"])
    assert quick[0] == plain[0] == status


def test_what_a_program_leaves_for_its_end_is_done_before_it_ends() -> None:
    leaves = """
import atexit, sys, threading
atexit.register(sys.stdout.write, " and at exit")
threading.Thread(target=lambda: (threading.main_thread().join(), sys.stdout.write(" in a thread"))).start()
sys.stdout.write("half a line")
"""
    quick, plain = both(["-c", leaves])
    assert quick == plain == (0, "half a line in a thread and at exit", "")


def test_one_that_hangs_ends_and_says_where() -> None:
    hangs = "import threading\ndef waits_for_ever():\n    threading.Event().wait()\nwaits_for_ever()"
    with forked.start(["-c", hangs], most_seconds=1, stderr=subprocess.PIPE, text=True) as process:
        _, errors = process.communicate()
    assert process.returncode == -signal.SIGALRM
    assert "waits_for_ever" in errors


def test_it_can_be_signalled_and_is_gone_when_waited_for() -> None:
    process = forked.start(["-c", "import time; time.sleep(600)"])
    assert process.poll() is None
    process.terminate()
    assert process.wait() == -signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)
