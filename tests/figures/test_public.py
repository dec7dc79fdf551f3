"""The public API of `memviz.figures`: the README names every figure, and each can be drawn as described."""

import importlib
import re

import numpy
import plotly.graph_objects as go
import pytest

import memviz
from memviz import figures
from memviz.results.open_trace import OpenTrace
from tests.house.repository import ROOT, python_files, text_of

SECTION = text_of("memviz/results/README.md")
CALLS = {
    call.partition("(")[0]: call
    for call, _ in re.findall(r"^\| `(\w+\([^`]+\))`(.*)$", SECTION[SECTION.index("| figure |") :], re.M)
}
ANSWERS = re.findall(
    r"`(\w+\([^`]*\))`", SECTION[SECTION.index("| result |") : SECTION.index("Results of `memviz.recording`")]
)
TRAINING, CHECKPOINTED = (f"sample_traces/{name}.pickle.gz" for name in ("training", "training-checkpointed"))


def test_the_readme_names_every_figure_and_answer_there_is() -> None:
    texts = [text_of(name) for name in python_files() if name.startswith("memviz/figures/plots/")]
    texts.append(text_of("memviz/figures/drawings.py"))
    defined = [name for name in re.findall(r"^def ([a-z]\w+)", "\n".join(texts), re.M)]
    assert sorted(CALLS) == sorted(figures.__all__) == sorted(defined)
    asked = {call.partition("(")[0] for call in ANSWERS}
    given = {name for name in vars(OpenTrace) if not name.startswith("_")}
    assert given - asked == {"device", "devices", "on", "headline", "as_json", "columns", "table"}
    with pytest.raises(AttributeError, match="plot_nothing"):
        _ = figures.plot_nothing


@pytest.mark.parametrize("name", CALLS)
def test_each_is_drawn_as_the_readme_says(name: str) -> None:
    for module in re.findall(r"memviz(?:\.[a-z_]+)+(?=\.\w+\()", CALLS[name]):
        importlib.import_module(module)
    training, other = (memviz.open(ROOT / path) for path in (TRAINING, CHECKPOINTED))
    trace = training.trace
    known = {"memviz": memviz, "numpy": numpy, "trace": trace, "device": trace.devices[0], "training": training}
    known["other"] = other if not name.startswith("plot_") else other.trace
    drawing = eval(CALLS[name], {name: getattr(figures, name), **known})
    assert isinstance(drawing, go.Figure)
    assert drawing.data


@pytest.mark.parametrize("call", ANSWERS)
def test_each_answer_is_given_as_the_readme_says(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    answer = eval(f"training.{call}", {"training": memviz.open(TRAINING)})
    assert str(answer).endswith(".") and answer.to_frame() is not None


def test_the_example_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    (example,) = re.findall(r"```python\n(.*?)```", SECTION, re.S)
    exec(example, {})
    assert capsys.readouterr().out == f"{memviz.open(TRAINING).peak()}\n"
