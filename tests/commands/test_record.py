"""`record` in a second process, alone, in ranks and under torchrun, with a profile; the GPU is the tests' own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import memviz
from memviz.analysis.health import health
from memviz.commands import main
from memviz.errors import UsageError
from memviz.ranks.gather import Gathering, gather_ranks
from memviz.ranks.places import places_of
from memviz.trace.load import load_trace
from memviz.trace.model import Action, Stage, Trace
from memviz.trace.profile import is_profiled
from tests import forked
from tests.facts import missing
from tests.second_process import OF_RUNS

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


AT_ITS_END = "memviz: 2 events written to run.pickle, at its end.\n"
RAN_OUT = "shows the moment of the OOM"
SCRIPTS: dict[str, tuple[str, int, dict[str, list[int]], str]] = {
    "ends with a status": ("GPU.malloc(1000)\nraise SystemExit(3)\n", 3, {"run": [1000]}, AT_ITS_END),
    "ends without a status": ("GPU.malloc(1000)\nraise SystemExit\n", 0, {"run": [1000]}, AT_ITS_END),
    "ends with words": (
        "GPU.malloc(1000)\nraise SystemExit('no data')\n",
        1,
        {"run": [1000]},
        AT_ITS_END + "no data\n",
    ),
    "ends by sys.exit": ("GPU.malloc(1000)\nimport sys; sys.exit(0)\n", 0, {"run": [1000]}, AT_ITS_END),
    "ends by os._exit": (
        "import os\nGPU.malloc(1000)\nif os.fork() == 0:\n    os._exit(3)\nos.wait()\nos._exit(7)\n",
        7,
        {"run": [1000]},
        "2 events written",
    ),
    "goes on after out of memory": (
        "try:\n    GPU.malloc(60 << 20)\nexcept RuntimeError:\n    GPU.malloc(30 << 20)\n",
        0,
        {"run.oom": [], "run": [30 * MiB]},
        "",
    ),
    "runs out of memory in a library that hides it": (
        "GPU.malloc(1000)\nraise RuntimeError('CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`')\n",
        1,
        {"run": [1000]},
        f"run.pickle {RAN_OUT}.",
    ),
    # The observer's own device counts, not that of the thread.
    "survives out of memory on another GPU": (
        "GPU.malloc(1000)\nfor observer in GPU.observers:\n    observer(1, 5000, 0, 0)\n"
        "GPU.counts_of[1] = (1, 0)\nraise KeyError('something else, later')\n",
        1,
        {"run.oom": [1000], "run": [1000]},
        "something else, later",
    ),
    "allocates in a thread after its last line": (
        "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.2), GPU.malloc(3000))).start()\n"
        "GPU.malloc(1000)\n",
        0,
        {"run": [1000, 3000]},
        "",
    ),
    "cannot be labelled": (
        "import memviz.runner.record.recorded_script as r\nr.with_labels = lambda *_: 1 / 0\nGPU.malloc(1000)\n",
        0,
        {"run": [1000]},
        "The recording has no labels: division by zero.",
    ),
    "forks processes that end by a signal and by themselves": (
        """
import os, signal, sys, time, warnings
warnings.simplefilter("ignore")  # Python 3.12 warns of any fork where libraries have threads
child = os.fork()
if child == 0:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(5)
    sys.exit(0)
assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGTERM
if os.fork() == 0:
    sys.exit(0)
os.wait()
GPU.malloc(1000)
""",
        0,
        {"run": [1000]},
        AT_ITS_END,
    ),
    "ends processes the moment it has forked them": (
        """
import os, signal, time
for _ in range(100):
    child = os.fork()
    if child == 0:
        time.sleep(5)
        os._exit(0)
    os.kill(child, signal.SIGTERM)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGTERM
GPU.malloc(1000)
""",
        0,
        {"run": [1000]},
        AT_ITS_END,
    ),
}


@pytest.mark.parametrize("does", SCRIPTS)
def test_whatever_a_script_does_its_status_stays_and_it_is_recorded_once(tmp_path, does):
    body, status, files, said = SCRIPTS[does]
    done = record(tmp_path, body)
    assert done.returncode == status, done.stderr
    assert {name.removesuffix(".pickle"): sizes(tmp_path / name) for name in names(tmp_path)} == files
    assert said in done.stderr
    assert (RAN_OUT in done.stderr) == (RAN_OUT in said)
    assert done.stderr.count("written to run.pickle") <= 1


def test_what_was_alive_at_the_end_and_that_the_history_was_full_is_in_the_file(tmp_path):
    body = "held = GPU.malloc(1000)\nfor size in (2000, 3000): GPU.free(GPU.malloc(size))\n"
    done = record(tmp_path, body, "--max-entries", "3")
    assert "3 events" in done.stderr
    assert load_trace(tmp_path / "run.pickle").devices[0].blocks.requested.sum() == 1000
    assert sizes(tmp_path / "run.pickle") == [3000]


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


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--holders",)])
def test_what_keeps_tensors_is_in_the_file_where_it_was_asked_for_or_memory_ran_out(tmp_path, options):
    body = """
import torch
from tests.runner.torch_storages import watching_torch
class Cache:
    def __init__(self):
        with watching_torch(GPU):
            self.last = torch.ones(1024)
cache = Cache()
try:
    GPU.malloc(60 << 20)
except MemoryError:
    pass
except RuntimeError:
    pass
GPU.malloc(1000)
"""
    done = record(tmp_path, body, *options)
    assert done.returncode == 0, done.stderr
    assert names(tmp_path) == ["run.oom.pickle", "run.pickle"]
    for name in names(tmp_path):
        trace = load_trace(tmp_path / name)
        rows = trace.devices[0].holders
        found = set() if rows is None else {trace.strings[code] for code in rows.chain}
        assert ("cache.last (global)" in found) == (bool(options) or "oom" in name), (name, found)


@pytest.mark.slow
def test_marked_moments_are_in_the_file_with_what_keeps_tensors_then(tmp_path, capsys):
    body = """
import memviz, torch
from tests.runner.torch_storages import watching_torch
losses = []
with watching_torch(GPU):
    for size in (1024, 2048):
        losses.append(torch.ones(size))
        memviz.mark(f"after {size}")
    losses.clear()
    GPU.malloc(1000)
"""
    done = record(tmp_path, body)
    assert done.returncode == 0, done.stderr
    trace = load_trace(tmp_path / "run.pickle")
    device = trace.devices[0]
    marks = [(trace.strings[name], Stage(stage).name) for name, stage in zip(*_names(device), strict=True)]
    assert marks == [(f"after {size}", stage) for size in (1024, 2048) for stage in ("START", "END")]
    moments = sorted(set(device.holders.event.tolist()))
    assert len(moments) == 2
    held = [memviz.open(trace).live_at(event=moment - 1).by("holder") for moment in moments]
    assert [{group.label: group.bytes for group in one.groups} for one in held] == [{"losses": 4096}, {"losses": 12288}]
    opened = memviz.open(trace)
    change = opened.live_at(mark="after 2048", by="holder").since(opened.live_at(mark="after 1024"))
    assert [(row.label, row.before_bytes, row.bytes) for row in change.rows] == [("losses", 4096, 12288)]
    main(["at", str(tmp_path / "run.pickle"), "--mark", "after 2048", "--since", "after 1024", "--by", "holder"])
    assert re.search(r"\+8\.00 KiB +4\.00 KiB +12\.0 KiB +losses", capsys.readouterr().out)
    with pytest.raises(UsageError, match="No annotation has the name 'later'; annotations are 'after 1024'"):
        opened.live_at(mark="later")


def _names(device: Any) -> Any:
    return device.annotations.name.tolist(), device.annotations.stage.tolist()


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


def test_a_file_that_is_there_stays_unless_told_otherwise(tmp_path):
    (tmp_path / "run.pickle").write_bytes(b"precious")
    done = record(tmp_path, "print('started')\nGPU.malloc(1000)\n")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("memviz: run.pickle already exists.")
    assert (tmp_path / "run.pickle").read_bytes() == b"precious"
    assert record(tmp_path, "GPU.malloc(1000)\n", "--overwrite").returncode == 0
    assert sizes(tmp_path / "run.pickle") == [1000]


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
    assert done.stderr == f"memviz: No file was written. {words}\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["absent.py"], "absent.py cannot be read (No such file or directory)."),
        (["."], ". is a folder. Give a script, or a module with -m."),
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
    assert missing(done.stderr, "GPU", "PyTorch", "There is nothing to record") == []
    assert names(tmp_path) == []


@pytest.mark.parametrize(("rank", "writes"), [(0, True), (1, False), (3, True)])
def test_only_chosen_ranks_write_their_end(tmp_path, rank, writes):
    done = record(tmp_path, "GPU.malloc(1000)\n", "--ranks", "0,last", RANK=str(rank), WORLD_SIZE="4")
    assert done.returncode == 0
    assert names(tmp_path) == ([f"run.rank{rank}.pickle"] if writes else [])
    assert bool(done.stderr) == writes


def test_a_rank_that_fails_writes_and_says_which_it_is(tmp_path):
    more = {"RANK": "2", "LOCAL_RANK": "2", "WORLD_SIZE": "4"}
    body = "GPU.malloc(1000)\nraise KeyError('weights')\n"
    done = record(tmp_path, body, "--ranks", "0", "--mesh", "pp=2,dp=2", **more)
    assert done.returncode == 1
    assert "memviz: Rank 2 of 4 (pp1, dp0) failed.\n" in done.stderr
    assert names(tmp_path) == ["run.rank2.pp1.dp0.pickle"]
    facts = load_trace(tmp_path / "run.rank2.pp1.dp0.pickle").about.facts
    assert {name: facts[name] for name in ("rank", "world_size", "mesh")} == {
        "rank": "2",
        "world_size": "4",
        "mesh": "pp=1,dp=0",
    }
    body = "GPU.malloc(1000)\nGPU.malloc(1 << 50)\n"
    done = record(tmp_path, body, "--ranks", "first", RANK="1", WORLD_SIZE="2")
    assert done.returncode == 1
    assert "Rank 1 of 2 failed." in done.stderr
    assert names(tmp_path) == ["run.rank1.pickle", "run.rank2.pp1.dp0.pickle"]
    assert load_trace(tmp_path / "run.rank1.pickle").about.facts["rank"] == "1"


@pytest.mark.slow
def test_ranks_that_the_launcher_ends_write_only_where_they_were_chosen(tmp_path):
    body = "import os, signal, time\nGPU.malloc(1000)\nos.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(30)\n"
    for rank in (0, 1):
        done = record(tmp_path, body, "--ranks", "0", RANK=str(rank), WORLD_SIZE="2")
        assert done.returncode == -signal.SIGTERM
    assert names(tmp_path) == ["run.rank0.pickle"]


def test_a_profile_is_written_beside_the_snapshot_and_each_says_what_it_is(tmp_path):
    pytest.importorskip("torch")
    body = "import torch\nGPU.malloc(1000)\nkept = torch.ones(3, 8) @ torch.ones(8, 5)\n"
    done = record(tmp_path, body, "--profile", of=OF_RUNS)
    assert done.returncode == 0, done.stderr
    assert "run.profile.json.gz" in done.stderr
    assert names(tmp_path) == ["run.pickle", "run.profile.json.gz"]
    snapshot, profile = (load_trace(tmp_path / name) for name in names(tmp_path))
    assert (
        snapshot.about.facts["profile"] == "run.profile.json.gz" and not is_profiled(snapshot) and is_profiled(profile)
    )
    assert "run.profile.json.gz" in next(note.text for note in health(snapshot) if note.code == "profile_beside")
    texts = [profile.strings[name] for name in profile.stacks.frames.name]
    assert "aten::mm" in texts and (profile.devices[0].events.size == 60).any()
    # The same clock, independent of its epoch.
    apart = abs(int(profile.devices[0].events.time_us[0]) - int(snapshot.devices[0].events.time_us[-1]))
    assert apart < 600e6 or not snapshot.devices[0].events.time_us[-1]
    assert [Path(place.address).name for place in places_of([str(tmp_path)])] == ["run.pickle"]


@pytest.mark.slow
def test_a_profile_that_cannot_be_had_is_said_and_one_that_is_there_stays(tmp_path):
    lines = f"import sys\nsys.modules['torch.profiler'] = None\n{USES_GPU}GPU.malloc(1000)\n"
    (tmp_path / "train.py").write_text(lines)
    done = recorded(tmp_path, "--profile", "train.py")
    said = "memviz: The profiler could not be turned on: torch is not installed here."
    assert done.returncode == 0 and said in done.stderr, done.stderr
    assert names(tmp_path) == ["run.pickle"] and "profile" not in load_trace(tmp_path / "run.pickle").about.facts
    (tmp_path / "run.pickle").rename(tmp_path / "run.profile.json.gz")
    done = record(tmp_path, "GPU.malloc(1000)\n", "--profile")
    assert done.returncode == 2 and "run.profile.json.gz already exists" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("ends", [signal.SIGTERM, signal.SIGINT])
def test_a_profile_of_what_there_is_is_written_when_the_script_is_told_to_end(tmp_path, ends):
    pytest.importorskip("torch")
    body = "import time\nimport torch\nGPU.malloc(1000)\ntorch.ones(3, 8) @ torch.ones(8, 5)\n"
    wait = "print('waiting', flush=True)\nwhile True:\n    time.sleep(0.1)\n"
    (tmp_path / "train.py").write_text(f"{USES_GPU}{body}{wait}")
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    arguments = ["-c", PROGRAM, "-o", "run.pickle", "--profile", "train.py"]
    process = forked.start(arguments, of=OF_RUNS, cwd=tmp_path, env=environment(), **streams)
    try:
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(ends)
        _, said = process.communicate(timeout=forked.MOST_SECONDS)
    finally:
        process.kill()
    assert process.returncode, said
    assert names(tmp_path) == ["run.pickle", "run.profile.json.gz"], said
    profile = load_trace(tmp_path / "run.profile.json.gz")
    assert "aten::mm" in [profile.strings[name] for name in profile.stacks.frames.name]


MEETS_AND_FAILS = """
import os, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(total)
GPU.malloc(1000 * int(total))
if dist.get_rank() == 1:
    # The launcher ends all others as soon as one fails.
    until = time.monotonic() + 60
    while not os.path.exists("run.rank0.dp0.pickle") and time.monotonic() < until:
        time.sleep(0.05)
    raise KeyError("weights")
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_files_of_torchrun_are_named_by_rank_and_mesh_and_the_one_that_fails_says_so(tmp_path: Path) -> None:
    """`torchrun` itself starts `record`: two processes that meet by gloo, and one of them fails."""
    pytest.importorskip("torch.distributed.run", reason="PyTorch is not installed")
    (tmp_path / "train.py").write_text(USES_GPU + MEETS_AND_FAILS)
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    launch += ["--no-python", sys.executable, "-c", PROGRAM]
    arguments = ["-o", "run.pickle", "--ranks", "0", "--mesh", "dp=2", "train.py"]
    done = subprocess.run(
        [sys.executable, *launch, *arguments],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 1
    assert names(tmp_path) == ["run.rank0.dp0.pickle", "run.rank1.dp1.pickle"], done.stderr
    assert "memviz: Rank 1 of 2 (dp1) failed.\n" in done.stderr
    assert load_trace(tmp_path / "run.rank1.dp1.pickle").about.facts["world_size"] == "2"
    ranks = gather_ranks(Gathering((str(tmp_path),), processes=1)).ranks
    # The sum of both went through the group.
    assert [(rank.number, rank.row.peak_bytes) for rank in ranks] == [(0, 3000), (1, 3000)]
