"""The folder of the cases, with small traces and scripts; the command line, a page, and text normalization."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import tempfile
from contextlib import ExitStack
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.ranks.files import write_ranks
from tests.second_process import OF_RUNS, ROOT, memviz
from tests.traces import MiB, alloc, block, event, frame, free, segment, snapshot

RELEASED = ("torch", "transformers", "diffusers")
"""Predictions depend on these libraries."""

KEYS = {
    "took_seconds": "seconds differ from run to run",
    "provenance": "releases of Python and of libraries, in predictions",
}
"""Values under these keys are left out where they are objects or numbers."""

ARITHMETIC = {"difference", "noise", "rounding", "alone", "chained", "losses", "signal", "later", "gap", "relative_l2"}
"""Keys of values computed in floating point, which differ between CPUs: only the keys are stored."""

FIGURES = ("absmax", "absmean", "average loss", "relative L2")
"""Rows of these figures are computed by the processor too."""

_PATH = r"(?<![\w./~-])(?:[\w./~-]*/)?"
TEXTS: dict[str, tuple[str, str]] = {
    "lines of the product move": (rf"{_PATH}(?:memviz|optimizations)/[\w/]+\.py(?::\d+)?", "<product>"),
    "and so do their rows in a table of stacks": (r"(?m)^\d+,\d+,.*,<product>,\d+\n", ""),
    "libraries are installed anywhere": (rf"{_PATH}site-packages/", "<libraries>/"),
    "so is Python": (rf"{_PATH}lib/python3\.\d+/", "<python>/"),
    "a page has another port, and an upload another folder": (r"http://127\.0\.0\.1:\d+/[\w./=-]*/", "<page>/"),
    "processors round in their own ways": (r"Differs by .*", "<difference>"),
    "a run says which PyTorch cannot measure": (r"This PyTorch \(\S+\)", "This PyTorch"),
}  # fmt: skip
"""Reason for each replacement: its pattern and the substitute."""

TRAIN = """\
import torch
from torch import nn

model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(3):
    loss = model(torch.randn(64, 256, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print("trained")
"""
ASKS = "import torch\nfor _ in range(torch.randn(3, device='cuda').long().sum()):\n    print('more')\n"
TWO_CARDS = """import torch
first = torch.nn.Linear(64, 64).to("cuda:0")
second = torch.nn.Linear(64, 64).to("cuda:1")
second(first(torch.zeros(8, 64, device="cuda:0")).to("cuda:1")).sum().backward()
"""


class Workplace:
    """A temporary folder with its own environment variables, restored on close."""

    def __enter__(self) -> Workplace:
        self._closing = ExitStack()
        self.folder = Path(self._closing.enter_context(tempfile.TemporaryDirectory(prefix="contracts-"))).resolve()
        self._set_environment(XDG_CACHE_HOME=str(self.folder / "cache"), COLUMNS="100")
        for sample in (ROOT / "sample_traces").glob("*.gz"):
            shutil.copy(sample, self.folder)
        for name, root in (("small.pickle", small()), ("larger.pickle", small(scale=2))):
            (self.folder / name).write_bytes(pickle.dumps(root))
        (self.folder / "train.py").write_text(TRAIN)
        (self.folder / "asks.py").write_text(ASKS)
        (self.folder / "two_cards.py").write_text(TWO_CARDS)
        (self.folder / "broken.pickle").write_bytes(b"hello")
        write_ranks(self.folder / "job", 4, rank2=7 * MiB)
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def _set_environment(self, **values: str) -> None:
        for name, value in values.items():
            before = os.environ.get(name)
            os.environ[name] = value
            put_back = (os.environ.pop, name, None) if before is None else (os.environ.__setitem__, name, before)
            self._closing.callback(*put_back)

    def memviz(self, words: list[str]) -> Any:
        """`python -m memviz WORDS` in the folder."""
        runs = words[0] in ("run", "fit", "predict", "reproduce")
        module = "tests.contracts.narrow" if words[0] == "reproduce" else "memviz"
        return memviz(*words, folder=self.folder, module=module, **({"of": OF_RUNS} if runs else {}))

    @cached_property
    def client(self) -> Any:
        """One Gradio client for all cases."""
        from gradio_client import Client

        from tests.server import started

        known = {"MEMVIZ_RUNS": str(self.folder / "runs")}
        page = self._closing.enter_context(started(known, quickly=True))
        downloads = str(self.folder / "downloads")
        return Client(page.address, verbose=False, download_files=downloads, httpx_kwargs={"timeout": None})

    def uploaded(self, value: Any) -> Any:
        """Return the value as a page takes it, with names of files replaced by uploads."""
        from gradio_client import handle_file

        if isinstance(value, list):
            return [self.uploaded(item) for item in value]
        is_file = isinstance(value, str) and value and (self.folder / value).is_file()
        return handle_file(self.folder / value) if is_file else value

    def alike(self, text: str) -> str:
        """The text without what differs between machines and runs."""
        for pattern, instead in TEXTS.values():
            text = re.sub(pattern, instead, text)
        return text.replace(str(self.folder), "<folder>").replace(str(ROOT), "<checkout>")

    def json(self, value: Any) -> str:
        return json.dumps(self._alike(value), indent=1, ensure_ascii=False) + "\n"

    def _alike(self, value: Any) -> Any:
        if isinstance(value, dict):
            if value.get("figure") in FIGURES:
                return {**value, "ours": "<number>", "difference_percent": "<number>"}
            return {key: self._under(key, item) for key, item in value.items()}
        if isinstance(value, list):
            return [item for item in map(self._alike, value) if not is_frame_of_product(item)]
        return self.alike(value) if isinstance(value, str) else value

    def _under(self, key: str, value: Any) -> Any:
        if key in KEYS and isinstance(value, dict | float):
            return f"<{key}>"
        if key in ARITHMETIC and isinstance(value, dict | list | float):
            return " ".join(sorted(set(names_in(value)))) or "<number>"
        return self._alike(value)


def is_frame_of_product(value: Any) -> bool:
    return isinstance(value, dict) and value.get("filename") == "<product>"


def names_in(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [*value, *(name for item in value.values() for name in names_in(item))]
    return [name for item in value for name in names_in(item)] if isinstance(value, list) else []


def releases() -> dict[str, str]:
    """Return the libraries' releases without a build's own mark, as `+cpu`, and the processor's instructions.

    Verdicts on outputs are computed here, and each instruction set rounds in its own way.
    """
    import torch

    found = {name: version(name).partition("+")[0] for name in RELEASED}
    return {**found, "instructions": torch.backends.cpu.get_cpu_capability()}


def small(scale: int = 1) -> dict[str, Any]:
    """Two devices, two streams, a request that fails, and stacks that share a line."""
    path = "/home/ada/model.py"
    made = [
        alloc(0, 600 * MiB, time_us=10, frames=[frame("build", path, 3), frame("<module>", "/home/ada/train.py", 1)]),
        alloc(1 << 32, scale * 300 * MiB, time_us=20, frames=[frame("forward", path, 9)]),
        alloc(1 << 33, 5 * MiB, time_us=25, stream=7, frames=[frame("forward", path, 10)]),
        *free(1 << 32, scale * 300 * MiB, time_us=30),
        event("oom", 0, 1 << 40, time_us=35, device_free=7, frames=[frame("forward", path, 9)]),
        alloc(1 << 34, 500, time_us=40, frames=[frame("step", "/home/ada/train.py", 7)]),
    ]
    blocks = [block(0, 600 * MiB), block(1 << 34, 512, 500), block(1 << 33, 5 * MiB, stream=7)]
    segments = [segment(0, 600 * MiB, blocks[:1]), segment(1 << 34, 2 * MiB, blocks[1:2])]
    segments.append(segment(1 << 33, 20 * MiB, blocks[2:], stream=7))
    other = [alloc(0, 1000, time_us=15), *free(0, 1000, time_us=33)]
    return {**snapshot(made, segments), "device_traces": [snapshot(made)["device_traces"][0], other]}
