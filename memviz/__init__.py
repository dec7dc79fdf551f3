"""PyTorch's GPU memory, explained.

`memviz.open("run.pickle").peak()` says what a snapshot holds; `with memviz.recording("run.pickle", model=model):`
records one on a GPU, and `with memviz.predicting(card="RTX 4090") as predicted:` predicts it without one.
`memviz.figures` draws what they come to.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memviz import figures
    from memviz.results.open_trace import open
    from memviz.runner.predicted_script import predict, predicting
    from memviz.runner.record.recording import mark, recording

__all__ = ["figures", "mark", "open", "predict", "predicting", "recording"]
_LIVES_IN = {
    "mark": "memviz.runner.record.recording",
    "open": "memviz.results.open_trace",
    "predict": "memviz.runner.predicted_script",
    "predicting": "memviz.runner.predicted_script",
    "recording": "memviz.runner.record.recording",
}

_TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
if not os.path.isdir(os.path.join(__path__[0], "optimizations")) and os.path.isdir(os.path.join(_TOP, "optimizations")):
    # A wheel has the folder in here, a checkout next to this one: code that memviz prints names it one way in both.
    __path__.append(_TOP)


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext memviz` in a notebook: cells can begin with `%%predict --card L4`."""
    import_module("memviz.commands.predict_cell").load(shell)


def __getattr__(name: str) -> Any:
    """Only when asked for: the command line starts before torch could be imported."""
    if name == "figures":
        return import_module("memviz.figures")
    if name == "__version__":
        return import_module("memviz.commands.command_line").VERSION
    if name not in _LIVES_IN:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(_LIVES_IN[name]), name)
    except ModuleNotFoundError as error:
        raise import_module("memviz.errors").library_needed(error) or error from None
