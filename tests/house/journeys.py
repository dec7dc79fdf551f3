"""Three journeys through the product, and the modules that each enters once everything is imported.

`python -m tests.house.journeys` prints them as JSON: a snapshot to the first values of Explore, a predicted run to its
verdict, and `predict` of a script of eight lines.
"""

import json
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from types import FrameType
from typing import Any

from memviz.commands.command_line import main
from memviz.runner.jobs.worker import answer
from memviz.runner.request import Request
from memviz.trace.load import load_trace

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = tuple(str(ROOT / part) for part in ("memviz", "optimizations"))
SCRIPT = """\
import torch
from torch import nn

model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
loss = model(torch.randn(64, 256, device="cuda")).square().mean()
loss.backward()
optimizer.step()
"""


def explore() -> None:
    # The page is imported for this journey alone: a run and a prediction do without it.
    from memviz.ui.explore.answer import ALL, details
    from memviz.ui.explore.state import ExploreState

    trace = load_trace(ROOT / "sample_traces" / "training.pickle.gz")
    details(trace, trace.devices[0], "abc/0", ExploreState(), selection={"key": "abc/0"}, parts=ALL)


def run() -> None:
    """Run a request as the worker process does."""
    request = Request("gpt2", {"layers": "2"}, (("checkpointing", {}),), on="predict", card="A100 80GB")
    with tempfile.TemporaryDirectory() as folder:
        answer(0, request, Path(folder), _send)


def predict() -> None:
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "train.py"
        script.write_text(SCRIPT)
        main(["predict", "--card", "A100 80GB", str(script)])


def _send(kind: str, number: int, **rest: Any) -> None:
    assert kind != "failed", rest


JOURNEYS: dict[str, Callable[[], None]] = {"run": run, "predict": predict, "explore": explore}


def entered(journey: Callable[[], None]) -> list[str]:
    """Product files with a function that the second time of this journey calls."""
    codes: dict[int, Any] = {}

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            codes[id(frame.f_code)] = frame.f_code

    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        journey()
        threading.setprofile(note)
        sys.setprofile(note)
        try:
            journey()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
    files = {code.co_filename for code in codes.values() if code.co_filename.startswith(PRODUCT)}
    return sorted(str(Path(name).relative_to(ROOT)) for name in files)


if __name__ == "__main__":
    sys.stdout.write(json.dumps({name: entered(JOURNEYS[name]) for name in sys.argv[1:] or JOURNEYS}, indent=1))
