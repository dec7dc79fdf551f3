"""`record` as people use it, in a second process; the GPU is the tests' own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memviz.trace.load import load_trace
from memviz.trace.model import Action, Trace
from tests import forked

ROOT = Path(__file__).parents[2]
PROGRAM = "from tests.runner.one_gpu import main; main()"
USES_GPU = "from tests.runner.one_gpu import GPU\nGPU.init()\n"
MiB = 1 << 20


def environment(**more: str) -> dict[str, str]:
    plain = {name: value for name, value in os.environ.items() if name not in ("RANK", "LOCAL_RANK")}
    return {**plain, "PYTHONPATH": str(ROOT), **more}


def record(
    folder: Path, body: str, *options: str, of: Callable[[], forked.ForkServer] = forked.light, **more: str
) -> subprocess.CompletedProcess[str]:
    """A script with these lines, its file being `run.pickle`."""
    (folder / "train.py").write_text(USES_GPU + body)
    return recorded(folder, *options, "train.py", "--lr", "3", "-o", "x", of=of, **more)


def recorded(
    folder: Path, *arguments: str, of: Callable[[], forked.ForkServer] = forked.light, **more: str
) -> subprocess.CompletedProcess[str]:
    return forked.run(["-c", PROGRAM, "-o", "run.pickle", *arguments], of=of, cwd=folder, env=environment(**more))


def sizes(path: Path) -> list[int]:
    events = load_trace(path).devices[0].events
    return events.size[events.action == Action.ALLOC].tolist()


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir() if each.name not in ("train.py", "__pycache__"))


def has_oom(trace: Trace) -> bool:
    return bool((trace.devices[0].events.action == Action.OOM).any())


def test_the_script_finds_what_it_would_find_without_us(tmp_path):
    body = """
import sys, os, pickle
class Mine: pass
assert type(pickle.loads(pickle.dumps(Mine()))) is Mine
print(sys.argv, __name__, sys.path[0] == os.getcwd(), os.path.basename(__file__), __spec__)
GPU.malloc(1000)
sys.stderr.write("my own words\\n")
"""
    done = record(tmp_path, body)
    assert done.stdout == "['train.py', '--lr', '3', '-o', 'x'] __main__ True train.py None\n"
    assert done.stderr == "my own words\nmemviz: 2 events written to run.pickle, at its end.\n"
    assert done.returncode == 0
    assert sizes(tmp_path / "run.pickle") == [1000]
    about = load_trace(tmp_path / "run.pickle").about
    assert (about.on, dict(about.facts)) == ("Fake GPU", {"torch": "2.13.0", "script": "train.py"})


def test_a_module_runs_as_python_m_would_run_it(tmp_path):
    package = tmp_path / "work"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text(
        USES_GPU + "import sys\nfrom . import other\nprint(__package__, __spec__.name, sys.argv[1:])\n"
    )
    (package / "other.py").write_text("from tests.runner.one_gpu import GPU\nGPU.malloc(1000)\n")
    done = recorded(tmp_path, "-m", "work", "--steps", "2")
    assert (done.stdout, done.returncode) == ("work work.__main__ ['--steps', '2']\n", 0)
    assert sizes(tmp_path / "run.pickle") == [1000]


def test_what_was_alive_at_the_end_is_in_the_file(tmp_path):
    record(tmp_path, "held = GPU.malloc(1000)\nGPU.free(GPU.malloc(2000))\n")
    blocks = load_trace(tmp_path / "run.pickle").devices[0].blocks
    assert blocks.requested.sum() == 1000


@pytest.mark.parametrize(
    ("ending", "status", "last_words"),
    [
        ("raise SystemExit(3)", 3, ""),
        ("raise SystemExit", 0, ""),
        ("raise SystemExit('no data')", 1, "no data\n"),
        ("import sys; sys.exit(0)", 0, ""),
    ],
)
def test_the_scripts_own_exit_is_kept(tmp_path, ending, status, last_words):
    done = record(tmp_path, f"GPU.malloc(1000)\n{ending}\n")
    written = "memviz: 2 events written to run.pickle, at its end.\n"
    assert (done.returncode, done.stderr) == (status, written + last_words)


def test_an_error_is_shown_as_python_would_show_it(tmp_path):
    body = "GPU.malloc(1000)\ndef deeper():\n    raise KeyError('mine')\ndeeper()\n"
    done = record(tmp_path, body)
    plain = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, env=environment(), capture_output=True, text=True
    )
    assert done.returncode == plain.returncode == 1
    assert done.stderr == "memviz: 2 events written to run.pickle, at its end.\n" + plain.stderr
    assert sizes(tmp_path / "run.pickle") == [1000]


def test_ctrl_c_ends_it_as_it_would_end_the_script(tmp_path):
    body = """
import atexit, os, signal, time
atexit.register(print, "said goodbye")
GPU.malloc(1000)
os.kill(os.getpid(), signal.SIGINT)
time.sleep(5)
"""
    done = record(tmp_path, body)
    assert done.returncode == -signal.SIGINT
    assert done.stdout == "said goodbye\n"
    assert done.stderr.endswith("KeyboardInterrupt\n")
    assert sizes(tmp_path / "run.pickle") == [1000]


def test_out_of_memory_at_the_end_is_the_end(tmp_path):
    body = """
held = GPU.malloc(40 << 20)
try:
    GPU.malloc(30 << 20)
finally:
    GPU.free(held)
"""
    done = record(tmp_path, body)
    assert done.returncode == 1
    assert "OutOfMemoryError" in done.stderr
    assert names(tmp_path) == ["run.pickle"]
    trace = load_trace(tmp_path / "run.pickle")
    assert has_oom(trace)
    assert trace.devices[0].blocks.requested.sum() == 40 * MiB


def test_out_of_memory_on_the_way_has_a_file_of_its_own(tmp_path):
    body = """
try:
    GPU.malloc(60 << 20)
except RuntimeError:
    GPU.malloc(30 << 20)
"""
    done = record(tmp_path, body)
    assert done.returncode == 0
    assert names(tmp_path) == ["run.oom.pickle", "run.pickle"]
    assert sizes(tmp_path / "run.oom.pickle") == []
    assert sizes(tmp_path / "run.pickle") == [30 * MiB]


@pytest.fixture
def waiting(tmp_path: Path) -> Any:
    """Starts a script and gives its process as soon as the script waits."""
    running: list[subprocess.Popen[str]] = []

    def start(body: str) -> subprocess.Popen[str]:
        (tmp_path / "train.py").write_text(USES_GPU + body)
        command = ["-u", "-c", PROGRAM, "-o", "run.pickle", "train.py"]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = forked.start(command, cwd=tmp_path, env=environment(), text=True, **pipes)
        running.append(process)
        assert process.stdout.readline() == "waiting\n"
        return process

    yield start
    for process in running:
        process.kill()
        process.communicate()


def test_a_signal_writes_and_the_script_goes_on(tmp_path, waiting):
    process = waiting("GPU.malloc(1000)\nprint('waiting')\ninput()\nGPU.malloc(2000)\n")
    for number in (1, 2):
        process.send_signal(signal.SIGUSR1)
        assert process.stderr.readline() == f"memviz: 2 events written to run.signal{number}.pickle, on a signal.\n"
    process.communicate("go on\n")
    assert process.returncode == 0
    assert sizes(tmp_path / "run.signal1.pickle") == [1000]
    assert sizes(tmp_path / "run.pickle") == [1000, 2000]


def test_the_signal_to_end_writes_even_where_the_script_hangs_in_the_driver(tmp_path, waiting):
    """A mutex taken twice waits in C, and no signal wakes it: the main thread runs no Python any more."""
    hang = """
import ctypes
lock = ctypes.CDLL(None).pthread_mutex_lock
mutex = ctypes.create_string_buffer(64)
lock(mutex)
print('waiting')
lock(mutex)
"""
    process = waiting(f"GPU.malloc(1000)\n{hang}")
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == -signal.SIGTERM
    assert sizes(tmp_path / "run.pickle") == [1000]


def test_a_script_that_handles_the_signal_itself_is_left_to_it(tmp_path, waiting):
    body = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
GPU.malloc(1000)
print('waiting')
input()
"""
    process = waiting(body)
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == 7
    assert sizes(tmp_path / "run.pickle") == [1000]


def test_a_process_that_the_script_forks_is_none_of_ours(tmp_path):
    body = """
import os, signal, sys, time, warnings
warnings.simplefilter("ignore")  # Python 3.12 warns of any fork where libraries have threads
child = os.fork()
if child == 0:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(5)
    sys.exit(0)
_, status = os.waitpid(child, 0)
print(os.WTERMSIG(status) == signal.SIGTERM, flush=True)
if os.fork() == 0:
    sys.exit(0)
os.wait()
GPU.malloc(1000)
"""
    done = record(tmp_path, body)
    assert (done.stdout, done.returncode) == ("True\n", 0)
    assert done.stderr == "memviz: 2 events written to run.pickle, at its end.\n"


def test_a_process_ended_the_moment_it_is_forked_ends_alone(tmp_path):
    body = """
import os, signal, time
ends = set()
for _ in range(100):
    child = os.fork()
    if child == 0:
        time.sleep(5)
        os._exit(0)
    os.kill(child, signal.SIGTERM)
    ends.add(os.WTERMSIG(os.waitpid(child, 0)[1]))
print(ends == {signal.SIGTERM}, flush=True)
GPU.malloc(1000)
"""
    done = record(tmp_path, body)
    assert (done.stdout, done.returncode) == ("True\n", 0)


def test_a_file_that_is_there_stays_unless_told_otherwise(tmp_path):
    (tmp_path / "run.pickle").write_bytes(b"precious")
    done = record(tmp_path, "print('started')\nGPU.malloc(1000)\n")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("memviz: run.pickle is there already.")
    assert (tmp_path / "run.pickle").read_bytes() == b"precious"
    assert record(tmp_path, "GPU.malloc(1000)\n", "--overwrite").returncode == 0
    assert sizes(tmp_path / "run.pickle") == [1000]


def test_a_full_history_is_said(tmp_path):
    done = record(tmp_path, "for size in (1000, 2000, 3000): GPU.malloc(size)\n", "--max-entries", "2")
    assert "memviz: The history was full: it kept the last 2 events" in done.stderr
    assert sizes(tmp_path / "run.pickle") == [2000, 3000]


def test_a_script_that_never_uses_the_gpu_is_told_so(tmp_path):
    (tmp_path / "train.py").write_text("print('on the processor')\n")
    done = recorded(tmp_path, "train.py")
    assert (done.returncode, done.stdout) == (2, "on the processor\n")
    assert done.stderr == "memviz: train.py never used the GPU, so there is nothing to record.\n"
    assert names(tmp_path) == []


def test_a_file_that_cannot_be_written_is_said_and_counts(tmp_path):
    body = "import os, shutil\nGPU.malloc(1000)\nshutil.rmtree(os.getcwd() + '/out')\n"
    (tmp_path / "out").mkdir()
    (tmp_path / "train.py").write_text(USES_GPU + body)
    done = forked.run(["-c", PROGRAM, "-o", "out/run.pickle", "train.py"], cwd=tmp_path, env=environment())
    assert done.returncode == 2
    words = "out/run.pickle cannot be written (No such file or directory). Make the folder out first."
    assert done.stderr == f"memviz: Nothing is written. {words}\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["absent.py"], "absent.py cannot be read (No such file or directory)."),
        (["."], ". is a folder. Name a script, or a module with -m."),
        (["-m", "absent.module"], "There is no module absent.module that can be run here."),
        (["broken.py"], "is not Python: invalid syntax"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_starts(tmp_path, arguments, said):
    (tmp_path / "broken.py").write_text("x = = 1\n")
    done = recorded(tmp_path, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "body", ["GPU.init()\n", "try:\n    GPU.init()\nexcept RuntimeError:\n    print('on the processor')\n"]
)
def test_a_card_that_is_listed_but_cannot_start_is_said_plainly(tmp_path, body):
    (tmp_path / "train.py").write_text("from tests.runner.one_gpu import GPU\n" + body)
    done = recorded(tmp_path, "train.py", FAKE_GPU_REFUSES="The NVIDIA driver on your system is too old.\nMore words.")
    assert done.returncode != 0
    assert (
        "memviz: There is nothing to record. The GPU that is listed here cannot be used by this PyTorch: "
        "The NVIDIA driver on your system is too old. Driver and PyTorch have to fit"
    ) in done.stderr
    assert names(tmp_path) == []


def test_what_threads_allocate_after_the_last_line_is_recorded_too(tmp_path):
    body = """
import threading, time
def later():
    time.sleep(0.2)
    GPU.malloc(3000)
threading.Thread(target=later).start()
GPU.malloc(1000)
"""
    done = record(tmp_path, body)
    assert done.returncode == 0
    assert sizes(tmp_path / "run.pickle") == [1000, 3000]


def test_a_script_that_ends_by_os_exit_leaves_its_recording_and_its_status(tmp_path):
    done = record(
        tmp_path, "import os\nGPU.malloc(1000)\nif os.fork() == 0:\n    os._exit(3)\nos.wait()\nos._exit(7)\n"
    )
    assert done.returncode == 7
    assert sizes(tmp_path / "run.pickle") == [1000]
    assert done.stderr.count("events written") == 1


def test_a_library_that_runs_out_of_memory_without_telling_anybody_is_out_of_memory(tmp_path):
    body = (
        "GPU.malloc(1000)\nraise RuntimeError('CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`')\n"
    )
    done = record(tmp_path, body)
    assert done.returncode == 1
    assert "run.pickle is the moment when memory ran out." in done.stderr
    assert names(tmp_path) == ["run.pickle"]


def test_a_recording_that_cannot_be_labelled_is_written_as_torch_gave_it(tmp_path):
    body = "import memviz.runner.record.recorded_script as r\nr.with_labels = lambda *_: 1 / 0\nGPU.malloc(1000)\n"
    done = record(tmp_path, body)
    assert done.returncode == 0
    assert "The recording has no labels: division by zero." in done.stderr
    assert sizes(tmp_path / "run.pickle") == [1000]


def test_out_of_memory_that_a_program_survives_on_another_gpu_is_not_its_end(tmp_path):
    """The observer's own device counts, not that of the thread."""
    body = """
held = GPU.malloc(1000)
for observer in GPU.observers:
    observer(1, 5000, 0, 0)
GPU.counts_of[1] = (1, 0)
raise KeyError('something else, later')
"""
    done = record(tmp_path, body)
    assert "is the moment when memory ran out" not in done.stderr
    assert names(tmp_path) == ["run.oom.pickle", "run.pickle"]
