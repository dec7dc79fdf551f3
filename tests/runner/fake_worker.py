"""Stand-in for `memviz.runner.jobs.worker` without PyTorch: a request's workload selects its behaviour.

`done` and `refused` answer at once; `waits:FILE` creates FILE.begun, and answers when FILE exists; `grows` allocates
memory without end, and `child-grows` does so in a child process; `dies` ends like a killed process, `done-then-dies`
after its answer. Any other, such as `endless`, never answers.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

KNOWN = ("done", "waits", "grows", "child-grows", "leaves-a-child", "dies", "done-then-dies")
GROWS = "import time\nheld = []\nwhile True:\n    held.append(bytearray(8 << 20))\n    time.sleep(0.01)\n"


def main() -> None:
    threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
    for line in sys.stdin:
        asked = json.loads(line)
        for number, request in zip(asked["numbers"], asked["requests"], strict=True):
            say("phase", number, phase="running a step")
            act, _, more = request["workload"].partition(":")
            answer(act, more, number, request)
        say("idle", -1)


def end_with(parent: int) -> None:
    """Exit with the parent, like the real worker: its answer would have no reader."""
    while os.getppid() == parent:
        time.sleep(0.1)
    os._exit(0)


def say(kind: str, number: int, **rest: Any) -> None:
    sys.stdout.write(json.dumps({"kind": kind, "number": number, **rest}) + "\n")
    sys.stdout.flush()


def answer(act: str, more: str, number: int, request: dict[str, Any]) -> None:
    if act == "refused":
        say("failed", number, what="refused", text="It does not go.")
        return
    gate = more or request["settings"].get("gate", "")
    if act == "waits":
        Path(f"{gate}.begun").touch()
    while act not in KNOWN or (act == "waits" and not Path(gate).exists()):
        time.sleep(0.02)
    if act == "grows":
        exec(GROWS, {})
    if act in ("child-grows", "leaves-a-child"):
        child = subprocess.Popen(
            [sys.executable, "-c", GROWS if act == "child-grows" else "import time\ntime.sleep(3600)"]
        )
        Path(more).write_text(str(child.pid))
        if act == "child-grows":
            child.wait()
    if act in ("done", "done-then-dies", "waits"):
        say("done", number, run=done(request))
    if act in ("dies", "done-then-dies", "leaves-a-child"):
        os.kill(os.getpid(), signal.SIGKILL)


def done(request: dict[str, Any]) -> dict[str, Any]:
    from tests.runner.runs import run

    return {**run().as_json(), "request": request}


if __name__ == "__main__":
    main()
