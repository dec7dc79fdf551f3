"""The public API of memviz.figures: figures of a trace or an answer, as the README names and describes them."""

import importlib
import json
import re
from typing import Any

import numpy
import plotly.graph_objects as go
import pytest

import memviz
from memviz import figures
from memviz.analysis.callstacks.stack_tree import stack_tree
from memviz.analysis.comparing.changes import changes
from memviz.analysis.lifetimes import live_rows
from memviz.analysis.peak import at, peak
from memviz.analysis.purpose.categories import categories
from memviz.analysis.segments import segments_at
from memviz.analysis.timeline import by_event
from memviz.errors import UsageError
from memviz.results.open_trace import OpenTrace
from tests.house.repository import ROOT, python_files, text_of
from tests.traces import MiB, alloc, read, segment, snapshot

SAMPLES = ROOT / "sample_traces"


@pytest.fixture(scope="module")
def training() -> OpenTrace:
    return memviz.open(SAMPLES / "training.pickle.gz")


def same(first: go.Figure, second: go.Figure) -> bool:
    return json.loads(first.to_json()) == json.loads(second.to_json())


def test_they_are_the_figures_of_the_analysis(training):
    trace, device = training.trace, training.trace.devices[0]
    top = int(peak(trace, device).event)
    assert same(figures.peak(training), figures.plot_peak(peak(trace, device)))
    assert same(
        figures.peak(training, "module", event=7, dark=True),
        figures.plot_peak(at(trace, device, 7, "module"), dark=True),
    )
    assert same(
        figures.icicle(training, event=7), figures.plot_icicle(stack_tree(trace, device, live_rows(device, 7)), trace)
    )
    coloured = {"categories": categories(trace, device)}
    assert same(figures.segments(training), figures.plot_segments(segments_at(trace, device, top), **coloured))
    other = memviz.open(SAMPLES / "training-checkpointed.pickle.gz")
    sides = [(trace, device), (other.trace, other.trace.devices[0])]
    assert same(figures.waterfall(training, other), figures.plot_waterfall(changes(sides)))
    drawn = figures.timeline(training, columns=300)
    plain = figures.plot_timeline(by_event(device, 300))
    assert same(go.Figure(drawn.data[:3]), go.Figure(plain.data[:3]))
    assert drawn.layout.title == plain.layout.title


@pytest.mark.slow
def test_an_answer_is_drawn_at_its_own_moment(training):
    now = training.live_at(event=1000, by="category")
    device = training.trace.devices[0]
    assert same(figures.peak(now), figures.plot_peak(now.found))
    assert same(figures.peak(now, "site"), figures.plot_peak(at(training.trace, device, 1000)))
    assert same(figures.icicle(now), figures.icicle(training, event=1000))
    assert same(figures.segments(now), figures.segments(training.segments_at(event=1000)))
    assert not same(figures.segments(now), figures.segments(training))
    compared = training.compare(SAMPLES / "training-checkpointed.pickle.gz")
    assert same(figures.waterfall(compared, by="category"), figures.waterfall(compared.by("category")))
    assert not same(figures.waterfall(compared), figures.waterfall(compared.by("category")))


def test_a_trace_itself_is_drawn_and_what_has_one_and_nothing_else(training):
    class Recording:
        trace = training.trace
        device = 0

    for source in (training.trace, Recording(), training.summary()):
        assert same(figures.timeline(source), figures.timeline(training))
    with pytest.raises(UsageError, match="There is no trace in str: open it with memviz.open first"):
        figures.timeline("training.pickle")
    with pytest.raises(UsageError, match="needs two traces"):
        figures.waterfall(training)


def two_devices() -> Any:
    first, second = [alloc(0, MiB, time_us=1)], [alloc(0, 4 * MiB, time_us=1), alloc(8 * MiB, MiB, time_us=5000)]
    held = [segment(0, 20 * MiB, [], device=1), segment(0, 2 * MiB, [])]
    return memviz.open(read({**snapshot([], held), "device_traces": [first, second]}))


def test_the_device_is_the_answers_or_the_one_that_is_named():
    trace = two_devices()
    assert "5.00 MiB live" in figures.peak(trace).layout.title.text
    for source, named in ((trace, 0), (trace.on(0), None), (trace.peak(device=0), None), (trace.peak(), "0")):
        assert "1.00 MiB live" in figures.peak(source, device=named).layout.title.text
    assert "2.00 MiB reserved" in figures.segments(trace, device=0).layout.title.text


@pytest.mark.slow
def test_time_is_an_axis_where_there_is_one_and_failures_are_marked(training):
    assert figures.timeline(two_devices(), over="time").layout.xaxis.title.text == "ms"
    with pytest.raises(UsageError, match="have no times"):
        figures.timeline(training, over="time")
    with pytest.raises(UsageError, match="there are event and time"):
        figures.timeline(training, over="bytes")
    drawn = figures.timeline(memviz.open(SAMPLES / "out-of-memory.pickle.gz"))
    assert "out of memory" in {series.name for series in drawn.data}
    assert "y2" in {series.yaxis for series in figures.timeline(memviz.open(SAMPLES / "training.pickle.gz")).data}


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
