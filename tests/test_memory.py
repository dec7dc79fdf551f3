"""Memory that the process keeps: pauses of Python's garbage collector, and the C library's heap."""

import gc
import os
import platform
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from memviz.memory import without_collection
from tests.benchmarks.task import make_file
from tests.house.repository import ROOT

count_frozen = gc.get_freeze_count


@pytest.fixture(autouse=True)
def nothing_is_frozen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Undo what `tests/conftest.py` does for all other tests."""
    monkeypatch.setattr(gc, "get_freeze_count", count_frozen)
    gc.unfreeze()
    yield
    gc.freeze()


class Loop:
    """Holds itself, so that only the collector finds it."""

    def __init__(self) -> None:
        self.itself = self


def dead_loops() -> weakref.ref[Loop]:
    seen = weakref.ref(Loop())
    for _ in range(3 * gc.get_threshold()[0]):
        Loop()
    return seen


def test_nothing_is_collected_within_unless_somebody_asks_and_afterwards_as_before() -> None:
    with without_collection():
        with without_collection():
            seen = dead_loops()
        assert seen() is not None and not gc.isenabled()
        gc.collect()
        assert seen() is None
    assert gc.isenabled()
    assert dead_loops()() is None


def test_what_fails_within_leaves_it_on_and_whoever_had_it_off_keeps_it_off() -> None:
    with pytest.raises(ZeroDivisionError), without_collection():
        raise ZeroDivisionError
    assert gc.isenabled()
    gc.disable()
    try:
        with without_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_what_was_set_aside_before_stays_so() -> None:
    with without_collection():
        before = gc.get_freeze_count()
        assert before
        with without_collection():
            pass
        assert gc.get_freeze_count() >= before * 0.99
    assert gc.get_freeze_count() == 0


SERVER = """
import gc
from memviz.memory import freeze_startup_objects, without_collection

before = [[] for _ in range(1000)]
freeze_startup_objects()
with without_collection():
    pass
assert not any(each is before for each in gc.get_objects())
later = []
later.append(later)
assert any(each is later for each in gc.get_objects())
del later
assert gc.collect() == 1
"""


def test_what_a_server_begins_with_is_looked_through_no_more_and_what_comes_later_is() -> None:
    subprocess.run([sys.executable, "-c", SERVER], check=True, cwd=ROOT)


pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told")
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


def output_of(program: str, *arguments: object, **more: str) -> str:
    """Run a program without settings of malloc but those given, and return what it prints."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    command = [sys.executable, "-c", program, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, env={**environment, **more}, capture_output=True, text=True, check=True)
    return done.stdout


def account(told: str, **more: str) -> tuple[int, int]:
    """Return the number of heaps and of separately mapped blocks."""
    heaps, alone = output_of(PROGRAM, told, **more).split()
    return int(heaps), int(alone)


def test_threads_share_few_heaps_and_large_blocks_go_back_at_once() -> None:
    usual, told = account("untold"), account("told")
    assert usual[0] > 2 >= told[0]
    assert usual[1] < told[1]


def test_what_somebody_has_set_stays() -> None:
    assert account("told", MALLOC_ARENA_MAX="4")[0] > 2


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
    kept, given_back = (int(output_of(READING, file, most)) for most in (1_000_000, 1))
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
    said = output_of(FIRST + reading + LAST, **({"MALLOC_TRIM_THRESHOLD_": told} if told else {}))
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
    inside, after = map(int, output_of(KEEPING).split())
    pages = 32 * (1 << 20) // 4096
    assert inside > 0.9 * pages
    assert after < 0.1 * pages
