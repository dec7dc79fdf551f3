"""Memory that the C library retains in a process, as reported by `malloc_info`."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks.task import make_file

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told")
ROOT = Path(__file__).parents[1]
PROGRAM = """
import ctypes, re, sys, tempfile, threading
from pathlib import Path
from memviz.memory import limit_heap_cache

library = ctypes.CDLL(None)
library.fopen.restype = ctypes.c_void_p

def account():
    with tempfile.NamedTemporaryFile() as file:
        stream = ctypes.c_void_p(library.fopen(file.name.encode(), b"w"))
        library.malloc_info(0, stream)
        library.fclose(stream)
        return Path(file.name).read_text()

if sys.argv[1] == "told":
    limit_heap_cache()
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
    """Return the number of heaps and of separately mapped blocks."""
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
from memviz.memory import reexec_with_malloc

print(os.getpid(), os.environ.get("PYTHONMALLOC"), flush=True)
reexec_with_malloc()
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


READING = """
import sys
from pathlib import Path
import memviz.trace.load as load
from memviz import memory

memory.MANY_EVENTS = int(sys.argv[2])
trace = load.load_trace(sys.argv[1])
print(next(line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if "VmRSS" in line))
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="as Linux tells it")
def test_what_reading_many_events_left_free_goes_back(tmp_path: Path) -> None:
    file = tmp_path / "many.pickle"
    make_file(file, 100_000, 200, 1)
    commands = [[sys.executable, "-c", READING, file, most] for most in ("1000000", "1")]
    kept, given_back = (
        int(subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout) for command in commands
    )
    assert given_back < kept - 4096


FIRST = """
import resource, sys
from contextlib import nullcontext
from pathlib import Path

FILE = "sample_traces/training.pickle.gz"

def handed_out(work):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    work()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
"""
BY_A_WORKER = """
from memviz.ranks.places import Place
from memviz.ranks.reduce_rank import reduce_rank
from memviz.ranks.gather import read_rank

def plain():
    # As it would be without what it is wrapped in.
    reduce_rank.__wrapped__(Place(FILE, "", 0))

def kept():
    read_rank(FILE, "", 0, None)
"""
BY_THE_PAGE = """
from memviz.memory import limit_heap_cache, large_blocks_kept
from memviz.ui.shell.session import Context
from memviz.ui.shell.store import TraceStore
from memviz.ui.upload import reading

limit_heap_cache()

def kept(by=large_blocks_kept):
    reading.large_blocks_kept = by
    readings, raw = reading.Readings(Context(TraceStore())), Path(FILE).read_bytes()
    one = readings.get(readings.begin("training.pickle.gz", len(raw), packed=False))
    one.arriving.add(raw)
    one.arriving.end()
    one._run()

def plain():
    kept(nullcontext)
"""
LAST = """
plain(), kept()
for _ in range(3):
    print(handed_out(plain), handed_out(kept))
"""


@pytest.mark.parametrize(
    ("reading", "told"),
    [
        pytest.param(BY_A_WORKER, "65536", id="worker"),
        pytest.param(BY_THE_PAGE, None, id="page", marks=pytest.mark.slow),
    ],
)
def test_while_a_file_is_read_the_system_hands_out_less_than_half_of_the_pages(reading, told) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    environment.update({"MALLOC_TRIM_THRESHOLD_": told} if told else {})
    command = [sys.executable, "-c", FIRST + reading + LAST]
    said = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout
    plain, kept = zip(*(map(int, line.split()) for line in said.splitlines()), strict=True)
    assert sum(kept) < sum(plain) / 2


KEEPING = """
import numpy as np
from pathlib import Path
from memviz.memory import limit_heap_cache, large_blocks_kept

def held():
    return int(Path("/proc/self/statm").read_text().split()[1])

limit_heap_cache()
before = held()
with large_blocks_kept():
    with large_blocks_kept():
        [np.ones(1 << 20, np.int8) for _ in range(32)]
    inside = held()
print(inside - before, held() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="as Linux tells it")
def test_what_was_kept_goes_back_with_the_last_who_reads() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    command = [sys.executable, "-c", KEEPING]
    said = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout
    inside, after = map(int, said.split())
    pages = 32 * (1 << 20) // 4096
    assert inside > 0.9 * pages
    assert after < 0.1 * pages
