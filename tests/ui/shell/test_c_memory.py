"""What the C library keeps, in a process of its own: it is asked by its own account (`malloc_info`)."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told")
ROOT = Path(__file__).parents[3]
PROGRAM = """
import ctypes, re, sys, tempfile, threading
from pathlib import Path
from memviz.ui.shell.c_memory import keep_little

library = ctypes.CDLL(None)
library.fopen.restype = ctypes.c_void_p

def account():
    with tempfile.NamedTemporaryFile() as file:
        stream = ctypes.c_void_p(library.fopen(file.name.encode(), b"w"))
        library.malloc_info(0, stream)
        library.fclose(stream)
        return Path(file.name).read_text()

if sys.argv[1] == "told":
    keep_little()
together = threading.Barrier(6)

def work():
    together.wait()
    [bytes(2000) for _ in range(1000)]
    together.wait()

threads = [threading.Thread(target=work) for _ in range(6)]
for each in threads: each.start()
for each in threads: each.join()
large = bytes(8 << 20)
del large
large = bytes(4 << 20)
said = account()
print(said.count("<heap nr="), re.findall('type="mmap" count="([0-9]+)"', said)[-1])
"""


def account(*told: str) -> tuple[int, int]:
    """Heaps, and blocks that lie by themselves."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    environment.update(each.split("=") for each in told[1:])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, told[0]], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    heaps, alone = done.stdout.split()
    return int(heaps), int(alone)


def test_threads_share_few_heaps_and_large_blocks_go_back_at_once() -> None:
    usual, told = account("untold"), account("told")
    assert usual[0] > 2 >= told[0]
    assert usual[1] < told[1]


def test_what_somebody_has_set_stays() -> None:
    assert account("told", "MALLOC_ARENA_MAX=4")[0] > 2


BEGINNING = """
import os, sys
from memviz.ui.shell.c_memory import begin_with_malloc

print(os.getpid(), os.environ.get("PYTHONMALLOC"), flush=True)
begin_with_malloc()
left = [name for name in os.environ if "MEMVIZ_" in name]
print(os.getpid(), os.environ.get("PYTHONMALLOC"), sys.argv[1:], *left)
"""


def begun(tmp_path: Path, **set_by_somebody: str) -> list[list[str]]:
    program = tmp_path / "program.py"
    program.write_text(BEGINNING)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONMALLOC"}
    done = subprocess.run(
        [sys.executable, str(program), "given"],
        env={**environment, "PYTHONPATH": str(ROOT), **set_by_somebody},
        capture_output=True,
        text=True,
        check=True,
    )
    return [line.split(" ", 1) for line in done.stdout.splitlines()]


def test_the_page_begins_anew_with_malloc_and_leaves_no_trace_of_it(tmp_path: Path) -> None:
    lines = begun(tmp_path)
    assert len({pid for pid, _ in lines}) == 1
    assert [said for _, said in lines] == ["None", "malloc", "None ['given']"]


def test_what_somebody_has_chosen_for_python_stays(tmp_path: Path) -> None:
    assert [said for _, said in begun(tmp_path, PYTHONMALLOC="default")] == ["default", "default ['given']"]
