"""Start of a process that a predicted program started: Python imports this first, by its place on PYTHONPATH.

The process counts as started, and its files are kept apart as its parent's are; once it has imported torch, it is
predicted too. Before that nothing else of memviz is imported, and nothing at all in processes that never need a card.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
import time
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

_HERE = str(Path(__file__).resolve().parent)
_FOLDER = os.environ.get("MEMVIZ_PREDICTED_CHILDREN", "")


class _AfterTorch:
    """Finder that begins the prediction when torch has been imported."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_begin(module: ModuleType) -> None:
                run(module)
                sys.path.append(str(Path(__file__).resolve().parents[3]))
                importlib.import_module("memviz.runner.predicted_script").predict_child(_MARK)

            spec.loader.exec_module = run_and_begin  # type: ignore[method-assign]
        return spec


def _run_next() -> None:
    """Import the machine's own module of this name, which this one hides."""
    sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry) != _HERE]
    hidden = sys.modules.pop("sitecustomize", None)
    try:
        importlib.import_module("sitecustomize")
    except ImportError:
        if hidden is not None:
            sys.modules["sitecustomize"] = hidden


def _follow_files() -> None:
    name, path = "memviz.predictor.outputs", Path(__file__).resolve().parents[2] / "predictor" / "outputs.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.follow_parent()


_MARK = Path(_FOLDER, f"{os.getpid()}-{time.time_ns()}")
if _FOLDER and os.path.isdir(_FOLDER) and "memviz" not in sys.orig_argv:
    _MARK.with_suffix(".started").write_text(json.dumps(sys.orig_argv))
    sys.meta_path.insert(0, _AfterTorch())
    _follow_files()
_run_next()
