"""A `python` on the path of a test's child process, such as a shell script: `forked` runs each call."""

import json
import os
import shlex
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests import forked

_ASKS = """
import json, os, socket, sys

line = socket.socket(socket.AF_UNIX)
line.connect(sys.argv[1])
call = json.dumps([sys.argv[2:], os.getcwd(), dict(os.environ)]).encode()
socket.send_fds(line, [call[:1]], [0, 1, 2])
line.sendall(call[1:])
line.shutdown(socket.SHUT_WR)
status = int(line.makefile().read())
os._exit(status if status >= 0 else 128 - status)
"""


@contextmanager
def python_on_path(folder: Path) -> Iterator[str]:
    """Yield a folder with `python` in it that is first on the path."""
    if not forked.CAN_FORK_RUNS:
        yield str(Path(sys.executable).parent)
        return
    (folder / "asks.py").write_text(_ASKS)
    words = shlex.join([sys.executable, "-IS", str(folder / "asks.py"), str(folder / "line")])
    (folder / "python").write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    (folder / "python").chmod(0o755)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / "line"))
        listening.listen()
        answering = threading.Thread(target=_answer, args=(listening,))
        answering.start()
        try:
            yield str(folder)
        finally:
            # Who waits for a call hears that there is none.
            listening.shutdown(socket.SHUT_RDWR)
            answering.join()


def _answer(listening: socket.socket) -> None:
    """Serve one call after the other."""
    while True:
        try:
            line, _ = listening.accept()
        except OSError:
            return
        with line, line.makefile("rb") as rest:
            first, streams, _, _ = socket.recv_fds(line, 1, 3)
            try:
                status = _carried_out(first + rest.read(), streams)
            finally:
                for stream in streams:
                    os.close(stream)
            line.sendall(str(status).encode())


def _carried_out(call: bytes, streams: Sequence[int]) -> int:
    arguments, folder, environment = json.loads(call)
    of = forked.with_torch if "predict" in arguments else forked.light
    stdin, stdout, stderr = streams
    named = {"stdin": stdin, "stdout": stdout, "stderr": stderr}
    with forked.start(arguments, of=of, cwd=folder, env=environment, **named) as process:
        return process.wait()
