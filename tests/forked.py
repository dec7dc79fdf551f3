"""Python programs in separate processes, forked from a server that has imported their modules.

Starting Python takes nearly a second with numpy, and several with PyTorch, in some hundred tests. The server imports
common modules once and forks for each program: arguments, folder, environment, streams, signals and exit status are
those of `python ARGUMENTS`, and the fork is a child of its caller. It exits like Python, but without the teardown of
modules, which with PyTorch takes ten times as long as a short program.
Tests of the start itself (closed outputs, lazy imports) start a real Python.
"""

import atexit
import ctypes
import faulthandler
import gc
import json
import os
import runpy
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from memviz.runner.jobs.limits import OWN_SESSION
from memviz.runner.jobs.service import MODULE

ROOT = Path(__file__).parents[1]
CAN_FORK = sys.platform == "linux"
CAN_FORK_RUNS = CAN_FORK and not Path("/dev/nvidiactl").exists()
"""A process that has looked for a GPU leaves none to those that are forked from it."""
_LENGTH = struct.Struct("<q")
_PR_SET_CHILD_SUBREAPER = 36
MOST_SECONDS = 600
"""Time limit of a program that a test waits for: one that hangs fails only its own test, with its stack."""
_ENDS_WITHIN_SECONDS = 30


class ForkServer:
    """A process that waits for calls; it ends with the one that it works for."""

    def __init__(self, begin: Callable[[socket.socket, socket.socket], subprocess.Popen[Any] | None]) -> None:
        """`begin` starts the process with its end of the socket and ours; without a process it ends with us."""
        # What is forked there has its parent end at once, and becomes this process's own child.
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._lock = threading.Lock()
        self._line, theirs = socket.socketpair()
        self._process = begin(theirs, self._line)
        theirs.close()
        atexit.register(self._end)

    def _end(self) -> None:
        self._line.close()
        if self._process is None:
            return
        try:
            self._process.wait(_ENDS_WITHIN_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def start(self, call: dict[str, Any], streams: list[int]) -> int:
        """Its pid."""
        message = json.dumps(call).encode()
        with self._lock:
            socket.send_fds(self._line, [_LENGTH.pack(len(message))], streams)
            self._line.sendall(message)
            return int(_LENGTH.unpack(_exactly(self._line, _LENGTH.size))[0])


class Forked(subprocess.Popen[Any]):
    """`Popen` of `[sys.executable, ...]`, from a server."""

    def __init__(self, server: ForkServer, arguments: list[str], most_seconds: int = 0, **more: Any) -> None:
        self._server = server
        self._apart = bool(more.get("start_new_session"))
        self._most_seconds = most_seconds
        super().__init__(arguments, **more)

    def _execute_child(self, args: Any, *given: Any) -> None:  # type: ignore[override]
        """Fork from the server instead of executing; arguments are in the order of CPython's own method."""
        cwd, env = given[4:6]
        stdin, _, _, stdout, _, stderr = ends = given[9:15]
        call = {
            "arguments": [os.fspath(arg) for arg in args[1:]],
            "folder": os.fspath(cwd or os.getcwd()),
            "environment": dict(os.environ if env is None else env),
            "apart": self._apart,
            "most_seconds": self._most_seconds,
        }
        streams = [own if end == -1 else end for own, end in enumerate((stdin, stdout, stderr))]
        self.pid = self._server.start(call, streams)
        self._child_created = True
        self._close_pipe_fds(*ends)  # type: ignore[attr-defined]


def _importing(imports: str, **more: str) -> ForkServer:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **more}

    def begin(line: socket.socket, _: socket.socket) -> subprocess.Popen[Any]:
        begins = "from tests import forked; forked.be_the_last_to_end()"
        code = f"{begins}\nimport {imports}\nforked.serve({line.fileno()})"
        return subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, env=environment, pass_fds=[line.fileno()])

    return ForkServer(begin)


def _importing_more(server: ForkServer, imports: str, **more: str) -> ForkServer:
    """Forked from another one, whose imports it has."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **more}
    code = f"import {imports}\nfrom tests import forked\nforked.serve(0)"
    command = [sys.executable, "-c", code]
    return ForkServer(lambda line, _: Forked(server, command, stdin=line, cwd=ROOT, env=environment))


@cache
def light() -> ForkServer:
    """Return a fork server with the imports of every command."""
    return _importing("memviz.commands.command_line, memviz.ui.saved.report, tests.runner.fake_gpu, tests.runner.runs")


@cache
def with_torch() -> ForkServer:
    """Return a fork server with the imports of a run, model libraries included."""
    return _importing("tests.warm_runs", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")


@cache
def with_page() -> ForkServer:
    """Return a fork server with Gradio and the page's modules, but no page; it can fork runs (`runs_from_here`)."""
    start = partial(_importing_more, with_torch()) if CAN_FORK_RUNS else _importing
    return start("memviz.ui.app", GRADIO_ANALYTICS_ENABLED="False")


def runs_from_here() -> None:
    """Let a page forked `with_page` fork its runs from a twin of itself; call it before any thread starts."""
    from memviz.runner.jobs import worker_process

    if not CAN_FORK_RUNS:
        return

    def begin(line: socket.socket, pages: socket.socket) -> None:
        if not os.fork():
            pages.close()
            serve(line.detach())
            # Its program has ended.
            raise SystemExit(_Ending.status)

    here = ForkServer(begin)
    worker_process.start_python = partial(start_python, server=here)


def start(
    arguments: Sequence[str], of: Callable[[], ForkServer] = light, most_seconds: int = MOST_SECONDS, **more: Any
) -> subprocess.Popen[Any]:
    """`Popen` of `[sys.executable, *arguments]`, forked where that can be; it ends by SIGALRM if it takes too long."""
    command = [sys.executable, *arguments]
    return Forked(of(), command, most_seconds, **more) if CAN_FORK else subprocess.Popen(command, **more)


def run(arguments: list[str], **more: Any) -> subprocess.CompletedProcess[str]:
    """The same waited for, with its output as text."""
    with start(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more) as process:
        out, errors = process.communicate()
    return subprocess.CompletedProcess(arguments, process.returncode, out, errors)


def start_python(arguments: Sequence[str], server: ForkServer | None = None, **streams: Any) -> Forked:
    """Replace the function of `memviz.runner.jobs.worker_process` by one whose workers start instantly."""
    if server is None:
        server = with_torch() if any(argument.startswith("memviz") for argument in arguments) else light()
    if MODULE in arguments:
        # A search starts runs of its own.
        arguments = ["-m", "tests.forking", *arguments[arguments.index(MODULE) :]]
    command = [sys.executable, *arguments]
    return Forked(server, command, stdout=subprocess.PIPE, text=True, encoding="utf-8", **OWN_SESSION, **streams)


# -- in the process that forks


def serve(line: int) -> None:
    """Serve forks; return only in a forked process after its program, so that Python exits as usual."""
    ours = socket.socket(fileno=line)
    gc.collect()
    gc.freeze()
    # Counting them looks at each object: a third of the time of a short prediction.
    frozen = gc.get_freeze_count()
    gc.get_freeze_count = lambda: frozen
    while True:
        first, streams, _, _ = socket.recv_fds(ours, _LENGTH.size, 3)
        if not first:
            os._exit(0)
        call = json.loads(_exactly(ours, _LENGTH.unpack(first + _exactly(ours, _LENGTH.size - len(first)))[0]))
        pid = _fork_for_the_one_above()
        if not pid:
            break
        for stream in streams:
            os.close(stream)
        ours.sendall(_LENGTH.pack(pid))
    ours.close()
    _become(call, streams)
    _carry_out(call["arguments"])


def _fork_for_the_one_above() -> int:
    """Fork twice, so that the new process becomes a child of the one above."""
    told, tell = os.pipe()
    between = os.fork()
    if between:
        os.close(tell)
        os.waitpid(between, 0)
        pid = int(_LENGTH.unpack(os.read(told, _LENGTH.size))[0])
        os.close(told)
        return pid
    between = os.getpid()
    pid = os.fork()
    if pid:
        os.write(tell, _LENGTH.pack(pid))
        os._exit(0)
    os.close(told)
    os.close(tell)
    while os.getppid() == between:
        time.sleep(0.0005)
    return 0


def _become(call: dict[str, Any], streams: list[int]) -> None:
    if call["apart"]:
        os.setsid()
    for number, each in enumerate(streams):
        os.dup2(each, number)
        os.close(each)
    os.chdir(call["folder"])
    served = os.environ.get("PYTHONPATH", "")
    os.environ.clear()
    os.environ.update(call["environment"])
    first, *rest = [each for each in sys.path if each not in served.split(os.pathsep)]
    sys.path[:] = [first, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), *rest]
    tempfile.tempdir = None
    if call["most_seconds"]:
        # By the system's clock, and not in a thread: the program may fork, and count its threads.
        faulthandler.register(signal.SIGALRM, file=2, chain=True)
        signal.alarm(call["most_seconds"])


class _Ending:
    """The exit status of this process's program, if known before Python reports it."""

    status: int | None = None


def be_the_last_to_end() -> None:
    """Register before any other exit function, because the first registered runs last."""
    atexit.register(_end_at_once)


def _end_at_once() -> None:
    """Threads and exit functions are through. Where anything is unusual Python ends the process, as ever."""
    if _Ending.status is None:
        return
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None and not stream.closed:
                stream.flush()
    except Exception:
        return
    os._exit(_Ending.status)


def _carry_out(arguments: list[str]) -> None:
    try:
        _run(arguments)
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            _Ending.status = (ended.code or 0) & 0xFF
        raise
    _Ending.status = 0


def _run(arguments: list[str]) -> None:
    options = []
    while arguments[0] not in ("-m", "-c") and not arguments[0].endswith(".py"):
        options.append(arguments.pop(0))
    sys.stdout.reconfigure(line_buffering=sys.stdout.isatty(), write_through="-u" in options)  # type: ignore[union-attr]
    if "-W" in options:
        warnings.simplefilter(options[options.index("-W") + 1])  # type: ignore[arg-type]
    how, *rest = arguments
    sys.argv = [how, *rest[how in ("-m", "-c") :]]
    if how == "-m":
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif how != "-c":
        runpy.run_path(how, run_name="__main__")
    else:
        sys.modules["__main__"].__dict__.clear()
        sys.modules["__main__"].__dict__.update(__name__="__main__", __builtins__=__builtins__)
        exec(rest[0], sys.modules["__main__"].__dict__)


def _exactly(line: socket.socket, count: int) -> bytes:
    parts = b""
    while len(parts) < count:
        part = line.recv(count - len(parts))
        if not part:
            raise EOFError("the process that forks has ended")
        parts += part
    return parts
