"""What `memviz.figures` offers to notebooks: the README names every figure, and each can be drawn as it says."""

from __future__ import annotations

import importlib
import re

import numpy
import plotly.graph_objects as go
import pytest

import memviz
from memviz import figures
from memviz.trace.load import load_trace
from tests.house.repository import ROOT, python_files, text_of

CALLS = {call.partition("(")[0]: call for call in re.findall(r"^\| `(plot_[^`]+)`", text_of("README.md"), re.MULTILINE)}


def test_the_readme_names_every_figure_there_is() -> None:
    texts = [text_of(name) for name in python_files() if name.startswith("memviz/figures/")]
    assert sorted(CALLS) == sorted(figures.__all__) == sorted(re.findall(r"^def (plot_\w+)", "\n".join(texts), re.M))


@pytest.mark.parametrize("name", CALLS)
def test_each_is_drawn_as_the_readme_says(name: str) -> None:
    for module in re.findall(r"memviz(?:\.[a-z_]+)+(?=\.\w+\()", CALLS[name]):
        importlib.import_module(module)
    trace, other = (
        load_trace(ROOT / "sample_traces" / f"{sample}.pickle.gz") for sample in ("training", "training-checkpointed")
    )
    known = {"memviz": memviz, "numpy": numpy, "trace": trace, "device": trace.devices[0], "other": other}
    drawing = eval(CALLS[name], {name: getattr(figures, name), **known})
    assert isinstance(drawing, go.Figure)
    assert drawing.data


def test_what_is_no_figure_is_refused() -> None:
    with pytest.raises(AttributeError, match="plot_nothing"):
        _ = figures.plot_nothing
