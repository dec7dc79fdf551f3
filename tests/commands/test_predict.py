"""`predict`: output, status and files of the script are kept, followed by the JSON and the verdict on a card."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from memviz.commands import main, predict_ranks
from memviz.predictor.cards import short_name
from memviz.trace.load import load_trace
from memviz.trace.model import Category
from tests.facts import missing
from tests.marks import slow
from tests.second_process import ROOT
from tests.second_process import predict as predict_in

MiB = 1 << 20
TRAINING = """
import torch
from torch import nn
model = nn.Linear(256, 256, bias=False).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for step in range(10):
    model(torch.randn(8, 256, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
print("all of it")
"""


def predict(folder: Path, body: str, *options: str, arguments: tuple[str, ...] = ()) -> Any:
    (folder / "train.py").write_text(body)
    return predict_in("--json", *options, "train.py", *arguments, folder=folder)


def said(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    return json.loads(done.stdout.splitlines()[-1])


def real(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "memviz", "predict", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.slow
def test_the_true_command_line(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys\nprint(sys.argv, __name__)\n" + TRAINING)
    done = real(tmp_path, "--json", "--card", "H100", "-o", "run.pickle", "train.py", "--lr", "3", "-o", "x", "--json")
    assert done.returncode == 0, done.stderr
    first, second, last = done.stdout.splitlines()
    assert (first, second) == ("['train.py', '--lr', '3', '-o', 'x', '--json'] __main__", "all of it")
    figures = json.loads(last)
    assert figures["card"].startswith("NVIDIA H100") and figures["file"] == "run.pickle" and figures["steps"] == 10
    assert "predicted for NVIDIA H100" in done.stderr
    trace = load_trace(tmp_path / "run.pickle")
    labels = trace.devices[0].event_labels
    assert labels is not None and Category.OPTIMIZER_STATE in labels.category.tolist()
    # Of the model itself, of its call, and of nothing.
    assert {trace.strings[at] for at in labels.module.tolist() if at >= 0} >= {"Linear"}
    assert len(set(labels.phase.tolist())) > 1


def test_memory_of_the_host_has_a_verdict_of_its_own(tmp_path: Path) -> None:
    body = "import torch\nkept = [torch.ones(1 << 20, device='cuda').cpu() for _ in range(3)]\n"
    body += "pinned = torch.empty(3_000_000, dtype=torch.uint8, pin_memory=True)\n"
    done = predict(tmp_path, body, "--host-memory", "127MiB", "--world-size", "8")
    host = said(done)["host"]
    assert (host["pageable_bytes"], host["pinned_bytes"]) == (12 << 20, 4 << 20)
    assert (host["processes"], host["memory_bytes"], host["fits"]) == (8, 127 << 20, False)
    assert "16.0 MiB of tensors" in done.stderr and missing(done.stderr, "128 MiB", "8 such") == []
    assert missing(done.stderr, "127 MiB", "does not fit") == []


def test_without_json_the_script_has_stdout_for_itself(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys\nsys.stdout.write('no line')\nimport torch\ntorch.ones(3).cuda()\n")
    done = predict_in("train.py", folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, "no line")
    assert "live       12 bytes" in done.stderr or "12 B" in done.stderr


def test_ctrl_c_ends_it_with_the_figures_until_there(tmp_path: Path) -> None:
    body = TRAINING.replace("    optimizer.zero_grad()", "    if step == 3: os.kill(os.getpid(), signal.SIGINT)")
    (tmp_path / "train.py").write_text("import atexit, os, signal\natexit.register(print, 'goodbye')\n" + body)
    done = predict_in("--json", "-o", "run.pickle", "train.py", folder=tmp_path)
    assert done.returncode == 128 + signal.SIGINT
    assert "Traceback" not in done.stderr
    assert missing(done.stderr, "Ctrl-C", "train.py:11") == [] and "incomplete" in done.stderr
    assert done.stdout.splitlines()[0] == "goodbye"
    figures = said(done)
    assert figures["stopped"] == {"where": "train.py:11", "what": "Stopped by Ctrl-C.", "assume": ""}
    assert (figures["steps"], figures["exit_status"], figures["fits"]) == (4, 130, None)
    # The weights, their gradient, their momentum and what the last step has left.
    assert figures["peak_requested_bytes"] > 3 * 256 * 256 * 4
    assert load_trace(tmp_path / "run.pickle").devices[0].events is not None


@pytest.mark.slow
def test_the_package_of_a_module_is_part_of_the_program(tmp_path: Path) -> None:
    package = tmp_path / "work"
    package.mkdir()
    on_card = "import torch\nassert torch.cuda.is_available()\nheld = torch.zeros(1 << 20, device='cuda')\n"
    (package / "__init__.py").write_text(on_card)
    (package / "train.py").write_text("")
    assert said(predict_in("--json", "-m", "work.train", folder=tmp_path))["peak_requested_bytes"] == 4 << 20
    (package / "__init__.py").write_text("import no_such_library\n")
    done = predict_in("-m", "work.train", folder=tmp_path)
    assert done.returncode == 1 and "No module named 'no_such_library'" in done.stderr
    for absent in ("absent", "absent.module", "tests.absent"):
        assert f"There is no module {absent}" in predict_in("-m", absent, folder=tmp_path).stderr


def test_steps_of_two_optimizers_are_taken_by_both(tmp_path: Path) -> None:
    body = """
import atexit, torch
atexit.register(print, "goodbye")
one, other = (torch.nn.Linear(64, 64, bias=False).cuda() for _ in range(2))
optimizers = [torch.optim.Adam(net.parameters()) for net in (one, other)]
for step in range(5):
    for net, optimizer in zip((one, other), optimizers):
        net(torch.ones(1, 64, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        print(step, len(optimizer.state))
"""
    done = predict(tmp_path, body, "--steps", "2")
    assert done.stdout.splitlines()[:-1] == ["0 1", "0 1", "1 1", "goodbye"]
    assert done.returncode == 0 and said(done)["steps"] == 2
    # Both networks and two moments of each, to 4 * 64 * 64 bytes.
    assert said(done)["by_category"]["optimizer_state"] == 4 * 4 * 64 * 64


BRANCH = """import torch
count = torch.rand(5, device="cuda").mul(9).long().sum().item()
made = torch.zeros(int(count), device="cuda")
print(made.numel())
"""


def test_what_cannot_go_on_is_stopped_with_the_line_and_how_to_state_it(tmp_path: Path) -> None:
    done = predict(tmp_path, BRANCH)
    assert done.returncode == 3
    figures = said(done)
    assert figures["exit_status"] == 3 and figures["fits"] is None
    stopped = figures["stopped"]
    assert (stopped["where"], stopped["assume"]) == ("train.py:3", "--assume train.py:2=VALUE")
    assert stopped["what"].startswith("a size, an index or a whole number")
    assert not any(missing(note, "caught", "prediction") == [] for note in figures["notes"])
    assert "Traceback" not in done.stderr and "stopped at" in done.stderr


@pytest.mark.slow
def test_an_answer_that_no_line_takes_is_an_error_with_the_lines_that_ask(tmp_path: Path) -> None:
    for place in ("tran.py:2", "train.py:3"):
        done = predict(tmp_path, BRANCH.replace("rand(5", "ones(5"), "--assume", f"{place}=300")
        assert done.returncode == said(done)["exit_status"] == 2 and said(done)["unused_assume"] == [place]
        assert said(done)["not_known"] is None, "the program itself came to its end"
        assert f"No line used --assume {place}. The program needed no value." in done.stderr
    done = predict(tmp_path, BRANCH, "--assume", "train.py:3=300")
    assert done.returncode == 3 and "train.py:2" in done.stderr
    done = predict(tmp_path, BRANCH, "--assume", "train.py:2=300", "--assume", "train.py:1=1")
    assert done.returncode == 2 and missing(done.stderr, "--assume", "train.py:1") == []


def test_a_line_that_asks_for_several_values_takes_several_answers(tmp_path: Path) -> None:
    body = """import torch
data = torch.zeros(100)
start = torch.rand(3, device="cuda").mul(9).long()
for _ in range(2):
    print(len(data[start[0] : start[1] + 4]))
print(start.tolist())
"""
    options = ("--assume", "train.py:5=0,8", "--assume", "train.py:6=1", "--assume", "train.py:6=2,3")
    done = predict(tmp_path, body, *options)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:-1] == ["8", "8", "[1, 2, 3]"]


def test_the_line_to_assume_is_the_innermost_that_asks(tmp_path: Path) -> None:
    """An assumption for the program's line, which calls the library, would also apply to the mask."""
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "lib.py").write_text(
        "import torch\ndef generate():\n"
        "    said = (torch.randn(4, 16, device='cuda') @ torch.randn(16, 9, device='cuda')).argmax(1) * 2\n"
        "    kept = said[said >= 0]\n"
        "    return ['abcdefgh'[:i] for i in kept.tolist()]\n"
    )
    body = "import sys\nsys.path.insert(0, 'site-packages')\nimport lib\nprint(*lib.generate())\n"
    stopped = said(predict(tmp_path, body))["stopped"]
    assert (stopped["where"], stopped["assume"]) == ("train.py:4", "--assume lib.py:5=VALUE")
    assert stopped["assume"] in stopped["what"]
    done = predict(tmp_path, body, *stopped["assume"].replace("VALUE", "5").split())
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "abcde abcde abcde abcde")


@pytest.mark.slow
def test_the_answers_of_a_run_are_written_and_taken_from_a_file(tmp_path: Path) -> None:
    body = """import torch
mask = torch.randn(8, 8, device="cuda").mm(torch.randn(8, 8, device="cuda")) > 0
rows, size = mask.nonzero(), mask.float().argmax().mul(3).item()
print(len(rows), torch.zeros(size).numel())
"""
    done = predict(tmp_path, body)
    stopped = said(done)["stopped"]
    assert (done.returncode, stopped["assume"]) == (3, "--assume train.py:3#2=VALUE")
    assert "whole number" in stopped["what"]
    # Relative to the folder of the run, as its other files.
    (tmp_path / "mine.txt").write_text("# Of a real run.\n\ntrain.py:size=5  # its length\n")
    done = predict(tmp_path, body, "--assume-file", "mine.txt", "--write-assume", "all.txt")
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "64 5"), done.stderr
    written = [line for line in (tmp_path / "all.txt").read_text().splitlines() if not line.startswith("#")]
    assert written == said(done)["assume"] == ["train.py:size=5", "train.py:3#1=True"]
    (tmp_path / "all.txt").write_text("\n".join(written).replace("True", "9"))
    done = predict(tmp_path, body, "--assume-file", "all.txt")
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "9 5"), done.stderr
    done = predict(tmp_path, body, "--assume", "train.py:3=500")
    assert done.returncode == said(done)["exit_status"] == 2 and "Traceback" not in done.stderr
    assert "--assume train.py:3=500 is not valid" in done.stderr and "64 elements" in done.stderr
    assert predict(tmp_path, body, "--assume-file", "none.txt").returncode == 2


@pytest.mark.slow
def test_where_no_value_helps_none_is_asked_for(tmp_path: Path) -> None:
    body = "import torch\ntorch.utils.dlpack.to_dlpack(torch.rand(9, device='cuda'))\n"
    done = predict(tmp_path, body)
    assert done.returncode == 3 and said(done)["stopped"]["assume"] == ""
    assert "--assume" not in done.stderr and "No value helps" in done.stderr
    body = "import torch\nx = torch.rand(9, 9, device='cuda')\n[1, 2][int((x @ x).sum().long().item())]\n"
    done = predict(tmp_path, body)
    assert done.returncode == 3 and "counts as 1 in conditions" not in done.stderr
    assert any("cannot be a size" in each["what"] for each in said(done)["assumed"])


@pytest.mark.parametrize(
    ("ending", "status", "last_words"),
    [
        ("raise SystemExit(4)", 4, ""),
        ("raise SystemExit", 0, ""),
        ("raise SystemExit('no data')", 1, "no data"),
        ("import sys; sys.exit(True)", 1, ""),
        ("exit()", 0, ""),
    ],
)
def test_the_scripts_own_exit_is_kept(tmp_path: Path, ending: str, status: int, last_words: str) -> None:
    done = predict(tmp_path, f"import torch\nx = torch.ones(8).cuda()\n{ending}\n")
    assert done.returncode == status == said(done)["exit_status"]
    assert last_words in done.stderr.splitlines() or not last_words
    assert (f"ended with exit status {status}, and only memory until then is counted" in done.stderr) is bool(status)
    figures = said(done)
    assert figures["peak_requested_bytes"] == 32
    assert (figures["not_known"] is None) is (figures["expected_error"] is not None) is not status


def test_an_error_is_shown_as_python_would_show_it(tmp_path: Path) -> None:
    body = "import torch\nx = torch.ones(8).cuda()\ndef deeper():\n    x.view(3)\ndeeper()\n"
    done = predict(tmp_path, body)
    assert done.returncode == 1 and said(done)["exit_status"] == 1
    assert said(done)["fits"] is None and said(done)["fit"] is None and "is unknown" in done.stderr
    assert "Expected error" not in done.stderr
    shown = done.stderr.partition("memviz:")[0].splitlines()
    last = "RuntimeError: shape '[3]' is invalid for input of size 8"
    assert shown[0] == "Traceback (most recent call last):" and shown[-1] == last
    assert [line.split(", ")[1] for line in shown if line.startswith("  File")] == ["line 5", "line 4"]
    assert all("train.py" in line for line in shown if line.startswith("  File"))


ENDINGS = {
    "no end of line": "import sys\nsys.stdout.write('half a line')\n",
    "at exit": "import atexit\natexit.register(print, 'goodbye')\n",
    "at exit, no end of line": "import atexit, sys\natexit.register(sys.stdout.write, 'goodbye')\n",
    "elsewhere": "import sys\nsys.stdout = open('log.txt', 'w')\nprint('in the file')\n",
    "printed as bytes": "import sys\nsys.stdout.buffer.write(b'half')\n",
    "its own stream": "import os\nos.fdopen(1, 'w', closefd=False).write('whole\\n')\n",
    "a logger": "import sys\nsys.stderr = sys.stdout = type('Log', (), {'write': len, 'flush': int})\nprint('lost')\n",
    "nowhere": "import sys\nsys.stdout.close()\n",
    "redirected": "import contextlib, io\nwith contextlib.redirect_stdout(io.StringIO()):\n    print('x')\n",
    "a process": "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'print(1)'], check=True)\n",
    "a fork": "import os\nif os.fork() == 0:\n    print('child')\nelse:\n    os.wait()\n",
    "a fork that exits": "import os, sys\nif os.fork() == 0:\n    sys.exit(5)\nos.wait()\n",
    "a thread": "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.1), print('late'))).start()\n",
    "a pool of threads": "from concurrent.futures import *\npool = ThreadPoolExecutor()\npool.submit(print, 'late')\n",
    "another folder": "import os\nos.makedirs('deep', exist_ok=True)\nos.chdir('deep')\nopen('own.txt', 'w').close()\n",
    "letters": "print('größe ∑ 模型')\n",
}


@pytest.mark.parametrize(
    "ending",
    ["no end of line", "at exit", "a logger", *slow(*(name for name in list(ENDINGS)[2:] if name != "a logger"))],
)
def test_the_json_is_the_last_line_whatever_the_script_does_with_its_output(tmp_path: Path, ending: str) -> None:
    done = predict(tmp_path, "import torch\nx = torch.ones(8).cuda()\n" + ENDINGS[ending], "-o", "run.pickle")
    assert done.returncode == 0, done.stderr
    assert said(done)["peak_requested_bytes"] == 32
    assert done.stdout.count('"peak_requested_bytes"') == 1 and done.stdout.endswith("}\n")
    assert "in the file" not in done.stdout
    assert load_trace(tmp_path / "run.pickle").devices[0].blocks.requested.sum() == 32


def test_a_file_that_is_there_is_not_replaced_unless_told_to(tmp_path: Path) -> None:
    (tmp_path / "run.pickle").write_text("precious")
    done = predict(tmp_path, "print('never')", "-o", "run.pickle")
    assert done.returncode == 2 and "never" not in done.stdout
    assert (tmp_path / "run.pickle").read_text() == "precious"
    done = predict(tmp_path, "import torch\nx = torch.ones(8).cuda()", "-o", "run.pickle", "--overwrite")
    assert done.returncode == 0
    assert load_trace(tmp_path / "run.pickle").devices[0].blocks.requested.sum() == 32


@pytest.mark.slow
def test_with_continue_a_program_goes_on_beyond_the_card(tmp_path: Path) -> None:
    body = """import torch
held = [torch.empty(1 << 30, 15, dtype=torch.uint8, device="cuda") for _ in range(3)]
print(len(held))
"""
    ended = predict(tmp_path, body, "--card", "L4")
    assert ended.returncode == 1 and "--continue" in ended.stderr and said(ended)["needs"] is None
    done = predict(tmp_path, body, "--card", "L4", "--continue")
    figures = said(done)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "3")
    assert (figures["fits"], figures["fit"], figures["out_of_memory"]) == (False, "no", 1)
    assert figures["needs"]["reserved_bytes"] == figures["peak_reserved_bytes"] == 45 << 30
    assert 20 << 30 < figures["needs"]["beyond_bytes"] < 24 << 30
    assert "it needs 45.00 GiB" in done.stderr and "more than usable" in done.stderr


@pytest.mark.slow
def test_a_card_runs_out_of_memory_where_it_would(tmp_path: Path) -> None:
    body = """
import torch
try:
    torch.empty(40 << 30, dtype=torch.uint8, device="cuda")
except torch.cuda.OutOfMemoryError as error:
    print("caught", str(error)[:24])
torch.empty(30 << 30, dtype=torch.uint8, device="cuda")
"""
    done = predict(tmp_path, body, "--card", "RTX 4090")
    assert done.returncode == 1 and done.stdout.splitlines()[0] == "caught CUDA out of memory. Tried"[:31]
    assert "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 30.00 GiB" in done.stderr
    figures = said(done)
    assert (figures["out_of_memory"], figures["fits"], figures["peak_requested_bytes"]) == (2, False, 0)
    done = predict(tmp_path, body)
    assert done.returncode == 0 and said(done)["peak_requested_bytes"] == 40 << 30


def test_without_a_card_the_verdict_is_a_list_of_common_ones(tmp_path: Path) -> None:
    body = "import torch\nheld = torch.empty(20 << 30, dtype=torch.uint8, device='cuda')\n"
    done = predict(tmp_path, body)
    figures = said(done)
    assert [figures[key] for key in ("fits", "fit", "context", "peak_reserved_on_card_bytes")] == [None] * 4
    assert figures["card"] == "NVIDIA GeForce RTX 4090", "whose kernels are followed"
    cards = figures["cards"]
    assert (cards["NVIDIA GeForce RTX 4090"], cards["Tesla T4"], cards["NVIDIA A100 80GB"]) == ("yes", "no", "yes")
    held_by, not_by = (one.split(" (")[0] for one in done.stderr.partition("fits on ")[2].split("; does not fit on "))
    assert {short_name(name) for name, word in cards.items() if word == "yes"} == set(held_by.split(", "))
    assert {short_name(name) for name, word in cards.items() if word == "no"} == set(not_by.split(", "))
    assert not any("CUDA context" in note for note in figures["notes"]) and "CUDA context" not in done.stderr
    named = said(predict(tmp_path, body, "--card", "T4"))
    assert (named["fits"], named["fit"], named["cards"]) == (False, "no", None)


CELLS = [
    "%matplotlib inline\n!pip install torch\nimport torch",
    "%%time\nweights = torch.zeros(1 << 20, dtype=torch.uint8, device='cuda')\nweights.shape",
    'text = """\n% no command\n"""\nfiles = !ls\nfor _ in (1, 2):\n    more = torch.zeros_like(weights)\n    %timeit 1',
    "%%bash\necho no",
    "  del more\n  torch.cuda.memory_allocated() >> 20",
    "weights[:10];",
]
COUNTS = "list(range(torch.randn(3, device='cuda').long().sum()))"


@pytest.mark.slow
def test_a_notebook_is_predicted_cell_by_cell(tmp_path: Path) -> None:
    def notebook(*more: str) -> Path:
        cells = [{"cell_type": "code", "source": text.splitlines(keepends=True)} for text in (*CELLS, *more)]
        path = tmp_path / "train.ipynb"
        path.write_text(json.dumps({"cells": [{"cell_type": "markdown", "source": "# Title"}, *cells], "nbformat": 4}))
        return path

    done = predict_in("--json", notebook(), folder=tmp_path)
    figures = said(done)
    assert done.returncode == 0 and done.stdout.splitlines()[:-1] == ["torch.Size([1048576])", "1"]
    live = [(cell["peak_requested_bytes"] >> 20, cell["end_requested_bytes"] >> 20) for cell in figures["cells"]]
    assert live == [(0, 0), (1, 1), (3, 2), (2, 2), (2, 1), (1, 1)]
    assert figures["skipped"] == [
        *("%matplotlib inline", "!pip install torch", "%%time", "files = !ls", "%timeit 1", "%%bash"),
    ]
    failed = predict_in("--json", notebook("x = 1\nweights[3] / (x - 1)\n1 / 0"), folder=tmp_path)
    assert failed.returncode == 1 and 'train.ipynb[7]", line 3' in failed.stderr and "1 / 0" in failed.stderr
    assert len(said(failed)["cells"]) == 7
    stopped = predict_in("--json", notebook(COUNTS), folder=tmp_path)
    assert said(stopped)["stopped"]["assume"] == "--assume train.ipynb[7]:1=VALUE"
    told = predict_in("--json", "--assume", "train.ipynb[7]:1=3", notebook(COUNTS), folder=tmp_path)
    assert told.stdout.splitlines()[-2] == "[0, 1, 2]"
    (tmp_path / "train.ipynb").write_text("{}")
    assert predict_in("train.ipynb", folder=tmp_path).returncode == 2


CHILD = "import torch; torch.ones(1 << 20, dtype=torch.uint8, device='cuda')"
SPAWNED = """\
import os, torch, torch.distributed as dist, torch.multiprocessing as mp
def work(rank, count):
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="29511")
    dist.init_process_group("nccl", rank=rank, world_size=count)
    torch.cuda.set_device(rank)
    torch.ones((rank + 1) << 20, dtype=torch.uint8, device="cuda")
if __name__ == "__main__":
    mp.spawn(work, args=(2,), nprocs=2)
"""
FOLLOWED = {
    "by a launcher that imports torch, which one without it started": (
        "import subprocess, sys\n"
        "def launcher(imports, code):\n"
        "    return f'import {imports}; subprocess.run([sys.executable, \"-c\", {code!r}], check=True)'\n"
        f"inner = launcher('subprocess, sys, torch', {CHILD!r})\n"
        "subprocess.run([sys.executable, '-c', launcher('subprocess, sys', inner)], check=True)\n",
        [2],
    ),
    "in its own place": (f"import os, sys\nos.execlp(sys.executable, sys.executable, '-c', {CHILD!r})\n", [2]),
    "ranks": (SPAWNED, [2, 20]),
    "that Python waits for at its end": (
        f"import multiprocessing as mp\ndef work():\n    {CHILD}\n"
        "if __name__ == '__main__':\n    mp.get_context('spawn').Process(target=work).start()\n",
        [2],
    ),
    "none that needs a card": ("import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'print(1)'])\n", []),
}


@pytest.mark.slow
@pytest.mark.parametrize("started", FOLLOWED)
def test_processes_that_it_starts_are_predicted_each_by_itself(tmp_path: Path, started: str) -> None:
    body, reserved_mib = FOLLOWED[started]
    done = predict(tmp_path, body, "--card", "T4")
    figures = said(done)
    assert (done.returncode, figures["fits"], figures["not_known"]) == (0, True, None), done.stderr
    used = [child for child in figures["children"] if child["peak_reserved_bytes"]]
    assert sorted(child["peak_reserved_bytes"] >> 20 for child in used) == reserved_mib
    assert [child["rank"] for child in used] == ([0, 1] if started == "ranks" else [None] * len(used))
    assert not figures["processes"] and figures["expected_error"]["not_counted"] == []
    assert figures["peak_reserved_bytes"] == 0 and done.stderr.count(", fits\n") == len(used)


@pytest.mark.slow
def test_processes_on_one_card_must_fit_it_together(tmp_path: Path) -> None:
    take = "import torch; held = torch.ones(9 << 30, dtype=torch.uint8, device='cuda')"
    body = f"import subprocess, sys\nfor _ in range(2):\n    subprocess.run([sys.executable, '-c', {take!r}])\n"
    done = predict(tmp_path, body, "--card", "T4")
    figures = said(done)
    # Each fits; whether both do at once is not known from their peaks.
    assert [child["fits"] for child in figures["children"]] == [True, True] and figures["fits"] is figures[
        "fit"
    ] is None
    assert missing(done.stderr, "cuda:0", "2 processes", "18.00 GiB") == []
    assert said(predict(tmp_path, body, "--card", "A100 80GB"))["fits"] is True


UNKNOWN = {
    "a Python that runs no program": "import os, sys\nos.system(sys.executable + ' -V > log.txt')\n",
    "isolated": "import subprocess, sys\nsubprocess.run([sys.executable, '-I', '-c', 'import json'])\n",
    "killed": (
        "import subprocess, sys\n"
        f"subprocess.run([sys.executable, '-c', {CHILD!r} + '; import os; os._exit(0)'], check=True)\n"
    ),
    "failed": f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {CHILD!r} + '; 1 / 0'])\n",
    "forked": (
        "import torch, multiprocessing as mp\ndef work(): torch.ones(9, device='cuda')\n"
        "p = mp.get_context('fork').Process(target=work); p.start(); p.join()\n"
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("started", UNKNOWN)
def test_what_children_take_is_not_known_and_never_nothing(tmp_path: Path, started: str) -> None:
    done = predict(tmp_path, UNKNOWN[started], "--card", "T4")
    figures = said(done)
    assert done.returncode == figures["exit_status"] == 4, done.stderr
    assert figures["fits"] is figures["fit"] is figures["expected_error"] is None and figures["not_known"]
    assert "0 B" not in done.stderr and "fits in" not in done.stderr and figures["not_known"] in done.stderr


@pytest.mark.slow
def test_beside_memory_of_its_own_a_child_is_what_is_not_counted(tmp_path: Path) -> None:
    body = "import subprocess, sys, torch\nheld = torch.ones(8).cuda()\nsubprocess.run([sys.executable, '-V'])\n"
    done = predict(tmp_path, body, "--card", "T4")
    figures = said(done)
    assert (done.returncode, figures["fits"], figures["not_known"]) == (0, True, None)
    assert figures["expected_error"]["not_counted"] == ["child processes"]
    assert figures["expected_error"]["is_lower_bound"] and list(figures["processes"].values()) == [1]
    # Programs that are not Python, and processes that load data, have no card.
    body = (
        "import subprocess, sys, torch\nsubprocess.run(['echo', 'x'])\nsubprocess.run(['ls', sys.executable])\n"
        "held = torch.ones(8).cuda()\n"
        "data = torch.utils.data.TensorDataset(torch.zeros(4, 2))\n"
        "list(torch.utils.data.DataLoader(data, num_workers=1))\n"
    )
    assert said(predict(tmp_path, body))["expected_error"]["not_counted"] == []


def test_a_program_that_fails_before_it_takes_memory_is_not_known(tmp_path: Path) -> None:
    done = predict(tmp_path, "import torch\nimport no_such_module\n", "--card", "T4")
    figures = said(done)
    assert (done.returncode, figures["fits"], figures["fit"], figures["expected_error"]) == (1, None, None, None)
    assert "status 1" in figures["not_known"] and figures["not_known"] in done.stderr
    assert "0 B" not in done.stderr and "fits" not in done.stderr


def test_what_waits_for_a_stream_is_live_and_torch_counts_it_no_longer(tmp_path: Path) -> None:
    done = predict(
        tmp_path,
        """
import torch
side = torch.cuda.Stream()
for _ in range(3):
    x = torch.empty(4 << 20, dtype=torch.uint8, device="cuda")
    with torch.cuda.stream(side):
        x.add_(1)
    x.record_stream(side)
    del x
y = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
""",
    )
    figures = said(done)
    assert figures["peak_requested_bytes"] > figures["peak_allocated_bytes"] == 4 * MiB
    assert "4.00 MiB" in done.stderr


@pytest.mark.slow
def test_a_prediction_says_how_true_it_is_likely_to_be(tmp_path: Path) -> None:
    found = said(predict(tmp_path, TRAINING))["expected_error"]
    assert found["class"] == "training" and found["recordings"] >= 3 and found["covered"]
    assert found["live"] is not None and found["not_covered"] == found["not_counted"] == []
    context = said(predict(tmp_path, TRAINING, "--card", "RTX 4090"))["context"]
    assert (context["least_bytes"], context["most_bytes"]) == (192 * MiB, 512 * MiB)
    convolution = "import torch\ntorch.nn.Conv2d(3, 8, 3).cuda()(torch.randn(1, 3, 8, 8, device='cuda'))\n"
    found = said(predict(tmp_path, convolution))["expected_error"]
    assert found["class"] == "inference" and not found["covered"]
    assert found["not_counted"] == ["some of cuDNN's workspaces"]


def test_an_option_of_ours_that_went_to_the_script_is_said(tmp_path: Path) -> None:
    done = predict(tmp_path, TRAINING, arguments=("--card", "T4"))
    assert missing(done.stderr, "--card", "train.py") == [] and "T4" not in said(done)["card"]


@pytest.mark.parametrize(
    "wrong",
    [
        *(("--card", "no such"), ("--torch", "nine"), ("--torch", "0.1"), ("--steps", "0"), ("missing.py",)),
        *(("--assume", each) for each in ("train.py=3", "train.py:3#0=3", "train.py:3=oh dear", ":3=1")),
    ],
    ids=" ".join,
)
def test_what_is_asked_wrongly_is_said_before_anything_runs(tmp_path: Path, wrong: tuple[str, ...]) -> None:
    done = predict(tmp_path, "print('never')", *wrong)
    assert done.returncode == 2 and "never" not in done.stdout and "Traceback" not in done.stderr
    assert "--assume takes" in done.stderr or wrong[0] != "--assume"


@pytest.mark.slow
def test_one_process_of_many(tmp_path: Path) -> None:
    body = (
        "import os, torch, torch.distributed as dist\n"
        "dist.init_process_group('nccl')\n"
        "held = torch.ones(dist.get_rank() + 1, device=f'cuda:{os.environ[\"LOCAL_RANK\"]}')\n"
        "dist.all_reduce(held)\n"
    )
    done = predict(tmp_path, body, "--world-size", "16", "--rank", "9", "-o", "run.pickle")
    assert done.returncode == 0, done.stderr
    figures = said(done)
    assert (figures["rank"], figures["world_size"], figures["peak_requested_bytes"]) == (9, 16, 40)
    assert "rank 9 of 16" in done.stderr and "NCCL's buffers" in {rule["rule"] for rule in figures["unproven"]}
    assert load_trace(tmp_path / "run.pickle").about.facts["rank"] == "9"
    alone = predict(tmp_path, body)
    assert alone.returncode == 3 and "--world-size 8" in said(alone)["stopped"]["what"]
    for options, word in {("--rank", "1"): "--world-size N", ("--rank", "2", "--world-size", "2"): "0 to 1"}.items():
        refused = predict(tmp_path, body, *options)
        assert refused.returncode == 2 and word in refused.stderr


@pytest.fixture
def forked_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes that `--rank all` starts, forked like all others here."""

    def run(command: list[str], **_named: object) -> subprocess.CompletedProcess[str]:
        return predict_in(*command[command.index("predict") + 1 :], folder=Path.cwd())

    monkeypatch.setattr(predict_ranks.subprocess, "run", run)


@pytest.mark.slow
@pytest.mark.usefixtures("forked_ranks")
def test_all_processes_are_one_of_each_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def of_all(body: str, *options: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "train.py").write_text(body)
        status = main(["predict", "--json", *options, "--rank", "all", "train.py"])
        return subprocess.CompletedProcess((), status, *capsys.readouterr())

    monkeypatch.chdir(tmp_path)
    body = (
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('nccl')\n"
        "held = torch.ones(dist.get_rank() == 0 and 100 or 10, device='cuda')\n"
        "print('rank', dist.get_rank())\n"
    )
    done = of_all(body, "--world-size", "64", "-o", "run.pickle.gz")
    assert done.returncode == 0, done.stderr
    figures = said(done)
    first, others = figures["classes"]
    assert (first["ranks"], others["ranks"]) == ([0], list(range(1, 64)))
    assert (first["peak_requested_bytes"], others["peak_requested_bytes"]) == (400, 40)
    assert figures["rank"] == "all" and figures["ran"] == 3 and figures["peak_requested_bytes"] == 400
    assert done.stdout.splitlines()[0] == "rank 0" and "ranks 1 to 63" in done.stderr
    for one, size in ((first, 400), (others, 40)):
        assert size in load_trace(tmp_path / one["file"]).devices[0].events.size.tolist()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("run.rank0.pickle.gz", "run.rank1.pickle.gz", "train.py"),
    ]
    again = of_all(body, "--world-size", "64", "-o", "run.pickle.gz")
    assert again.returncode == 2 and "already exists" in again.stderr
    stopping = body + "dist.broadcast(held.new_empty(int((torch.rand(3, device='cuda')[0] * 9).long())), 0)\n"
    stopped = of_all(stopping, "--world-size", "2")
    assert stopped.returncode == 2 and "Rank 0 stopped at train.py:5" in stopped.stderr
    failed = of_all(body + "raise ValueError('of', dist.get_rank())\n", "--world-size", "4")
    assert failed.returncode == 1 and failed.stderr.count("ValueError: ") == 1
    assert "ended with the error above" in failed.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("forked_ranks")
def test_several_cards_have_a_verdict_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    body = "import torch\nprint('begun')\nheld = torch.ones(20 << 30, dtype=torch.uint8, device='cuda')\n"
    (tmp_path / "train.py").write_text(body)

    def of_cards(*options: str) -> tuple[int, list[str], str]:
        status = main(["predict", "--json", *options, "train.py"])
        out, err = capsys.readouterr()
        return status, out.splitlines(), err

    status, (said_first, result), told = of_cards("--card", "L4,T4, A100 80GB, 16GiB", "-o", "run.pickle", "--continue")
    by_card = json.loads(result)["by_card"]
    assert (status, said_first) == (0, "begun")
    assert [one["fit"] for one in by_card] == ["yes", "no", "no"]
    assert [one["card"] for one in by_card] == ["NVIDIA L4", "Tesla T4", "NVIDIA A100 80GB with 16 GiB"]
    sizes = {int(load_trace(tmp_path / one["file"]).devices[0].events.size.max()) for one in by_card}
    assert sizes == {20 << 30}
    assert missing(told, "20.00 GiB", "does not fit") == []
    # Without --continue the script sees the error and ends with its status.
    assert of_cards("--card", "L4,T4")[0] == 1
    for refused in (("--memory", "8GiB"), ("--gpus", "2"), ("--outputs", "kept")):
        status, _, told = of_cards("--card", "L4,T4", *refused)
        assert status == 2 and "--card names 2" in told


@pytest.mark.slow
def test_what_decides_it_by_a_little_is_close_and_says_so(tmp_path: Path) -> None:
    """The context takes 0.19 to 0.50 of 23.64 GiB: 23 always fits, 23.3 only with the least context, 23.6 never."""
    body = "import sys, torch\ntorch.empty(int(sys.argv[1]) << 20, dtype=torch.uint8, device='cuda')\n"
    found = {}
    for mebibytes in (23_552, 23_860, 24_166):
        done = predict(tmp_path, body, arguments=(str(mebibytes),))
        found[mebibytes] = said(done)["cards"]["NVIDIA GeForce RTX 4090"]
        assert ("close on RTX 4090" in done.stderr) == (mebibytes == 23_860)
    assert found == {23_552: "yes", 23_860: "close", 24_166: "no"}
    done = predict(tmp_path, body, "--card", "RTX 4090", arguments=("23860",))
    limited = said(done)
    assert (limited["fits"], limited["fit"], limited["peak_reserved_without_limit_bytes"]) == (False, "no", None)
    assert missing(done.stderr, "23.14 GiB", "23.45 GiB") == [] and missing(done.stderr, "192 MiB", "512 MiB") == []


def test_workspaces_that_are_not_counted_make_it_close(tmp_path: Path) -> None:
    body = "import torch\ntorch.nn.Conv2d(3, 64, 7, padding=3).cuda()(torch.empty(400, 3, 224, 224, device='cuda'))\n"
    done = predict(tmp_path, body, "--card", "T4")
    figures = said(done)
    error = figures["expected_error"]
    assert figures["peak_reserved_bytes"] + error["uncounted_bytes"] > 14 << 30
    assert (figures["fits"], figures["fit"]) == (True, "close") and "close to the limit" in done.stderr
    assert "±" not in done.stderr and "±" not in error["sentence"]


ALLOCATE = "torch.empty({}, dtype=torch.uint8, device='cuda')"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "words"),
    [
        (ALLOCATE.format("1 << 40"), "does not fit: "),
        ("held = [" + ALLOCATE.format("128 << 20") + " for _ in range(400)]", "does not fit: "),
        (
            "torch.cuda.set_per_process_memory_fraction(0.25)\n" + ALLOCATE.format("8 << 30"),
            "exceeded its own memory fraction of NVIDIA GeForce RTX 4090 once",
        ),
    ],
    ids=["more than any card has", "piece by piece", "more than its own limit"],
)
def test_a_program_that_ran_out_does_not_fit_and_is_not_close(tmp_path: Path, body: str, words: str) -> None:
    done = predict(tmp_path, f"import torch\n{body}\n", "--card", "RTX 4090")
    figures = said(done)
    assert (figures["exit_status"], figures["fits"], figures["fit"]) == (1, False, "no")
    assert words in done.stderr and "close" not in done.stderr
    assert "what the CUDA context takes" not in done.stderr or "fraction" not in words


@pytest.mark.slow
def test_reserved_on_the_card_stands_beside_reserved_without_a_limit(tmp_path: Path) -> None:
    """Two sizes, one after the other: the cache of the first goes back where memory is short."""
    body = """
import torch
for gibibytes in (13, 14):
    one = torch.empty(gibibytes << 30, dtype=torch.uint8, device="cuda")
    del one
"""
    keys = ("peak_reserved_on_card_bytes", "peak_reserved_without_limit_bytes", "peak_reserved_bytes")
    free, limited = said(predict(tmp_path, body)), said(predict(tmp_path, body, "--card", "RTX 4090"))
    assert [free[key] for key in keys] == [None, 27 << 30, 27 << 30] and free["fit"] is None
    assert [limited[key] >> 30 for key in keys] == [14, 27, 14] and limited["fit"] == "yes"


@pytest.mark.slow
def test_a_backend_that_is_not_predicted_has_two_bounds(tmp_path: Path) -> None:
    body = TRAINING.replace("8, 256", "4096, 256").replace("model(", "torch.compile(model.gelu, backend='cudagraphs')(")
    body = body.replace("optimizer =", "model.gelu = nn.Sequential(model, nn.GELU())\noptimizer =")
    figures = said(done := predict(tmp_path, body, "--compile", "--card", "L4", "--steps", "2"))
    lowest = said(predict(tmp_path, body, "--ideal-fusion", "--card", "L4", "--steps", "2"))
    assert (figures["bound"], lowest["bound"], lowest["ideal_fusion"]) == ("eager", "ideal fusion", None)
    for name, size in figures["ideal_fusion"].items():
        assert lowest[name] == size < figures[name]
    assert "ideal fusion" in done.stderr
