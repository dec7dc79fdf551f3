"""`memviz.open` and its results: the command line's own numbers, as objects, sentences, tables and frames."""

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import FrozenInstanceError, dataclass
from html.parser import HTMLParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy
import pytest

import memviz
from memviz.commands import main
from memviz.errors import TraceError, UsageError
from memviz.results.open_trace import OpenTrace
from memviz.results.result import Result
from memviz.units import bytes_text
from tests.facts import missing
from tests.house.repository import ROOT
from tests.runner.processes import PATIENCE_SECONDS
from tests.traces import MiB, alloc, block, frame, free, segment, snapshot, trace_of

SAMPLES = ROOT / "sample_traces"
TRAINING, CHECKPOINTED = SAMPLES / "training.pickle.gz", SAMPLES / "training-checkpointed.pickle.gz"
OUT_OF_MEMORY = SAMPLES / "out-of-memory.pickle.gz"


def _some(trace: OpenTrace) -> int:
    return trace.summary().devices[0].events // 2 - 1


RESULTS: dict[str, Callable[[OpenTrace], Result]] = {
    "the trace": lambda trace: trace,
    "summary": lambda trace: trace.summary(),
    "peak": lambda trace: trace.peak(),
    "live": lambda trace: trace.live_at(event=_some(trace)),
    "stacks": lambda trace: trace.by("stack"),
    "segments": lambda trace: trace.segments_at(event=_some(trace)),
    "comparison": lambda trace: trace.compare(trace),
    "replay": lambda trace: trace.replay(),
}


@pytest.fixture(scope="module")
def training() -> OpenTrace:
    return memviz.open(TRAINING)


@dataclass(frozen=True)
class Same:
    command: str
    asked: Callable[[OpenTrace], Result]


SAME = [
    Same(f"summary {TRAINING}", lambda trace: trace.summary()),
    Same(f"peak {TRAINING} --by stack", lambda trace: trace.by("stack", top=20)),
    Same(f"at {TRAINING} --event 1000 --by module --top 0", lambda trace: trace.live_at(event=1000).by("module")),
    Same(
        f"diff {TRAINING} {CHECKPOINTED} --top 0 --by category",
        lambda trace: trace.compare(CHECKPOINTED, by="category"),
    ),
    Same(
        f"replay {TRAINING} --settings expandable_segments:True --memory 3GiB --overhead 1GiB --search",
        lambda trace: trace.replay(settings="expandable_segments:True", memory="3GiB", overhead=1 << 30, search=True),
    ),
]


@pytest.mark.parametrize("same", SAME, ids=[same.command.replace(f"{SAMPLES}/", "") for same in SAME])
def test_values_are_the_command_lines_to_the_byte(same, training, capsys):
    assert main([*same.command.split(), "--json"]) == 0
    assert json.dumps(same.asked(training).as_json(), indent=2) + "\n" == capsys.readouterr().out


def timed() -> Any:
    """Two devices; the second one ran higher, and its events have times."""
    here = [frame("make", "/home/x/train.py", 3)]
    first = [alloc(0, MiB, time_us=1)]
    second = [
        alloc(0, 8 * MiB, frames=here, time_us=2_000_000),
        alloc(8 * MiB, 3 * MiB, frames=[frame("load", "/home/x/data.py", 9)], time_us=2_500_000),
        *free(0, 8 * MiB, time_us=3_000_000),
    ]
    held = segment(0, 20 * MiB, [block(8 * MiB, 4 * MiB, 3 * MiB)], device=1)
    return {**snapshot([], [held]), "device_traces": [first, second]}


@pytest.fixture
def two_devices(tmp_path: Path) -> Path:
    path = tmp_path / "two.json"
    path.write_text(json.dumps(timed()))
    return path


def test_a_device_is_chosen_once_or_for_a_question(two_devices):
    trace = memviz.open(two_devices)
    assert trace.devices == ("0", "1")
    assert [device.device for device in trace.summary().devices] == ["0", "1"]
    assert (trace.peak().device, trace.peak(device=0).live_bytes, trace.peak().live_bytes) == ("1", MiB, 11 * MiB)
    first = memviz.open(two_devices, device=0)
    assert [device.peak_bytes for device in first.summary().devices] == [MiB]
    assert first.peak().live_bytes == first.compare(two_devices).peaks[0] == MiB
    assert "of device 0" in str(first.peak())
    with pytest.raises(UsageError, match="has no device 7. Its devices: 0, 1"):
        trace.peak(device=7)


def test_a_time_counts_from_the_first_event_as_on_the_command_line(two_devices, capsys):
    trace = memviz.open(two_devices)
    assert [trace.live_at(time=time).live_bytes for time in (0, 0.49, 0.5, 0.9, 1)] == [
        8 * MiB,
        8 * MiB,
        11 * MiB,
        11 * MiB,
        3 * MiB,
    ]
    assert main(["at", str(two_devices), "--time", "0.5", "--top", "0", "--json"]) == 0
    assert json.dumps(trace.live_at(time=0.5).as_json(), indent=2) + "\n" == capsys.readouterr().out
    for moment in ({}, {"event": 1, "time": 1.0}):
        with pytest.raises(UsageError, match="as an event or a time"):
            trace.live_at(**moment)
    with pytest.raises(UsageError, match="not a time"):
        trace.segments_at(time=float("nan"))


def test_segments_say_how_each_is_used_and_a_moment_is_one_sentence(two_devices):
    found = memviz.open(two_devices).segments_at(event=1)
    assert (found.reserved_bytes, found.free_bytes) == (20 * MiB, 8 * MiB)
    (only,) = found.segments
    assert (only.live_bytes, only.waiting_bytes, only.free_bytes, only.blocks) == (12 * MiB, 0, 8 * MiB, 2)
    facts = ("20.0 MiB are reserved in 1 segment", "device 1 after event 1", "use 12.0 MiB", "8.00 MiB (40 %) are free")
    assert missing(found, *facts) == []
    trace = memviz.open(two_devices)
    facts = ("11.0 MiB are live", "device 1 after event 1", "73 % of it at train.py:3 make", "20.0 MiB are reserved")
    assert missing(trace.live_at(event=1), *facts) == []
    assert str(trace.live_at(event=-1)).startswith("0 B are live on device 1 before the first event.")


def test_every_map_of_a_real_trace_adds_up(training):
    for event in range(-1, 6044, 700):
        found, live = training.segments_at(event=event), training.live_at(event=event)
        parts = [part.live_bytes + part.waiting_bytes + part.free_bytes for part in found.segments]
        assert parts == [part.bytes for part in found.segments]
        assert sum(parts) == found.reserved_bytes == live.reserved_bytes
        assert sum(group.bytes for group in live.groups) + live.rest_bytes == live.live_bytes


def test_without_segments_or_history_it_answers_too():
    trace = memviz.open(trace_of([alloc(0, 512), alloc(1024, 512)], segments=[]))
    for event, when in ((1, "after event 1"), (-1, "before the first event")):
        found = trace.segments_at(event=event)
        assert str(found) == f"The file does not say what is reserved {when}."
        assert found.as_json()["reserved_is_known"] is False
    trace = memviz.open(trace_of([], [segment(0, 20 * MiB, [block(0, 4 * MiB)])]))
    assert str(trace.live_at(event=-1)).startswith("4.00 MiB are live at the end, 100 % of it ")
    assert str(trace.segments_at(event=-1)).startswith("20.0 MiB are reserved in 1 segment at the end.")
    assert str(trace.replay()).startswith("Nothing to replay.")
    for ask in RESULTS.values():
        assert ask(trace)._repr_html_().startswith("<div>")


@pytest.mark.parametrize("name", RESULTS)
def test_results_are_frozen_and_print_as_a_sentence(name, training):
    result = RESULTS[name](training)
    assert re.fullmatch(r"[^\n]+\.", str(result)) and repr(result) == str(result)
    with pytest.raises(FrozenInstanceError):
        result.trace = None
    with pytest.raises((FrozenInstanceError, AttributeError)):
        result.headline = None


@pytest.mark.parametrize("name", RESULTS)
def test_frames_have_every_row_in_plain_values(name, training):
    pandas = pytest.importorskip("pandas")
    result = RESULTS[name](training)
    frame, columns = result.to_frame(), result.columns()
    assert isinstance(frame, pandas.DataFrame) and len(frame) > 0
    assert {column: frame[column].astype(object).where(frame[column].notna(), None).tolist() for column in frame} == (
        columns
    )


def test_three_traces_compare_side_by_side(training):
    comparison = training.compare(CHECKPOINTED, memviz.open(OUT_OF_MEMORY), by="category")
    assert list(comparison.columns())[:6] == ["key", "a_bytes", "b_bytes", "c_bytes", "b_delta_bytes", "c_delta_bytes"]
    assert sum(comparison.columns()["c_bytes"]) == comparison.peaks[2] == memviz.open(OUT_OF_MEMORY).peak().live_bytes
    assert comparison.by("site").found.by == "site"
    with pytest.raises(UsageError, match="one other trace"):
        training.compare()


def test_a_replay_says_whether_it_runs(training):
    small = training.replay(memory="2GiB", overhead=0)
    assert not small.runs and missing(str(small), "event 2,514", "runs out of memory") == []
    assert "set aside" not in str(small)
    large = training.replay(memory="24GiB")
    assert large.runs
    aside = "512 MiB of the card's 24 GiB are set aside for the CUDA context and libraries."
    assert str(large).startswith("In 23.50 GiB this run fits") and str(large).endswith(aside)
    opened = memviz.open(training.replay(settings="expandable_segments:True").trace)
    assert str(opened.summary().as_json()["origin"]) == "replayed with expandable_segments:True"
    for wrong in ({"memory": "many"}, {"memory": -1}, {"settings": "no_such:1"}):
        with pytest.raises(UsageError):
            training.replay(**wrong)


# -- untrusted text

NASTY = "</td><script>alert(1)</script>\x1b[31m\u202e<b onmouseover=x>"


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes |= {name for name, _ in attrs}


@pytest.mark.parametrize("name", RESULTS)
def test_text_from_a_trace_is_shown_and_never_markup(name, tmp_path):
    path = tmp_path / "<script>.json"
    frames = [frame(NASTY, f"/home/x/{NASTY}.py", 3)]
    held = [segment(0, 20 * MiB, [block(0, 8 * MiB)])]
    path.write_text(json.dumps(snapshot([alloc(0, 8 * MiB, frames=frames), alloc(8 * MiB, MiB, frames=frames)], held)))
    result = RESULTS[name](memviz.open(path))
    bundle = result._repr_mimebundle_()
    tags = Tags()
    tags.feed(bundle["text/html"])
    assert tags.names <= {"div", "p", "strong", "table", "thead", "tbody", "tr", "th", "td", "i", "svg", "path"}
    assert not {attribute for attribute in tags.attributes if attribute.startswith("on")}
    assert bundle["text/plain"].isprintable()
    for forbidden in ("\x1b", "\u202e", "http", "<script"):
        assert forbidden not in bundle["text/html"]


def test_a_table_in_a_notebook_says_what_it_leaves_out(training):
    peak = training.peak()
    assert set(peak._repr_mimebundle_()) == {"text/plain", "text/html"}
    assert set(peak._repr_mimebundle_(include={"text/html"})) == {"text/html"}
    assert set(peak._repr_mimebundle_(exclude={"text/html"})) == {"text/plain"}
    shown = training.by("stack")._repr_html_()
    groups = training.by("stack").groups
    assert len(groups) > 20 and shown.count("<tr>") == 22
    rest = sum(group.bytes for group in groups[20:])
    assert f">{bytes_text(rest)}</td>" in shown and "(all others)" in shown


def test_a_prediction_and_whatever_has_a_trace_is_opened_as_it_is(training):
    torch = pytest.importorskip("torch")
    with memviz.predicting("L4") as predicted:
        kept = torch.zeros(1 << 20, device="cuda")
        with pytest.raises(UsageError, match="no trace"):
            memviz.open(predicted)
    assert kept.shape == (1 << 20,)
    assert memviz.open(predicted).peak().live_bytes == memviz.open(predicted.trace).peak().live_bytes == 4 * MiB
    replayed = memviz.open(training.replay(settings="expandable_segments:True"))
    assert replayed.trace.about.origin == "replayed"
    assert memviz.open(training).trace is training.trace
    with pytest.raises(UsageError, match="not from this int"):
        memviz.open(5)


# -- what cannot be opened


def test_errors_are_those_of_the_command_line(tmp_path, capsys):
    damaged = tmp_path / "damaged.pickle"
    damaged.write_bytes(TRAINING.read_bytes()[:500])
    for path in (damaged, tmp_path / "nothing.pickle", tmp_path):
        with pytest.raises(TraceError) as caught:
            memviz.open(path)
        assert main(["summary", str(path)]) == 2
        assert capsys.readouterr().err == f"memviz: {caught.value}\n"
    with pytest.raises(TraceError, match=r"^\.: It is a folder"):
        memviz.open(".")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (lambda trace: trace.live_at(event="x"), "event must be an integer, such as 1000, not 'x'."),
        (lambda trace: trace.live_at(event=3.5), "event must be an integer, such as 1000, not 3.5."),
        (lambda trace: trace.segments_at(time="1"), "time must be a number of seconds, such as 0.5, not '1'."),
        (
            lambda trace: trace.replay(settings={"a": 1}),
            'settings must be a string, such as "expandable_segments:True", not',
        ),
        (lambda trace: trace.replay(memory="lots"), "memory: 'lots' is not a size; write for example 24GiB or 512MiB"),
        (lambda trace: trace.replay(memory=-5), "memory: -5 is negative."),
        (lambda trace: trace.replay(overhead=[]), 'overhead must be a size, in bytes or as in "24GiB", not [].'),
        (lambda trace: trace.replay(memory=float("inf")), 'memory must be a size, in bytes or as in "24GiB", not inf.'),
        (
            lambda trace: trace.compare(3),
            "Open a trace by file name or address, not from this int.",
        ),
        (
            lambda trace: memviz.open(b"x"),
            "Open a trace by file name or address, not from this bytes",
        ),
    ],
)
def test_a_wrong_argument_is_named_with_what_it_should_be(asked, said, training):
    with pytest.raises(UsageError, match=f"^{re.escape(said)}"):
        asked(training)


def test_an_event_may_be_a_whole_number_of_any_kind(training):
    said = str(training.live_at(event=1000))
    assert str(training.live_at(event=1000.0)) == said
    assert str(training.live_at(event=numpy.int64(1000))) == said


def test_an_open_trace_needs_its_file_no_longer(tmp_path):
    copy = tmp_path / "copy.pickle.gz"
    copy.write_bytes(TRAINING.read_bytes())
    trace = memviz.open(copy)
    copy.unlink()
    assert trace.peak().live_bytes == memviz.open(TRAINING).peak().live_bytes


@pytest.mark.slow
def test_few_frames_with_long_names_in_many_orders_do_not_fill_the_machine() -> None:
    frames = [frame("n" * 4000 + str(i), "f" * 4000 + str(i), i) for i in range(200)]
    trace = trace_of([alloc(512 * i, 512, frames=frames[i:] + frames[:i]) for i in range(100)])
    answer = memviz.open(trace).by("stack").as_json()
    assert len(json.dumps(answer)) < 80 << 20
    with_stacks = sum("stack" in row for row in answer["rows"])
    assert (len(answer["rows"]), with_stacks + answer["stacks_left_out"]) == (100, 100)
    assert with_stacks > 0 and len(answer["rows"][0]["stack"]) == 200


FILE = (ROOT / "sample_traces" / "training.pickle.gz").read_bytes()


class Server(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        getattr(self, f"answer_{self.path.partition('?')[0].split('/')[1]}")()

    def answer_good(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(FILE)

    def answer_cut(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(FILE)))
        self.end_headers()
        self.wfile.write(FILE[:5000])

    def answer_missing(self) -> None:
        self.send_error(404)

    def answer_elsewhere(self) -> None:
        self.send_response(302)
        self.send_header("Location", "/good/other-name.pickle.gz")
        self.end_headers()

    def answer_file(self) -> None:
        self.send_response(302)
        self.send_header("Location", "ftp://127.0.0.1/etc/passwd")
        self.end_headers()

    def answer_page(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html>")

    def answer_drip(self) -> None:
        self.send_response(200)
        self.end_headers()
        try:
            for _ in range(200):
                self.wfile.write(b"\x80")
                self.wfile.flush()
                time.sleep(0.05)
        except OSError:
            return

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving() as place:
        yield place


@contextmanager
def serving() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_it_is_the_file(address):
    opened = memviz.open(f"{address}/good/my%20run.pickle.gz?download=1")
    assert opened.trace.about.source == "my run.pickle.gz"
    here = memviz.open(ROOT / "sample_traces" / "training.pickle.gz")
    assert {**opened.as_json(), "file": ""} == {**here.as_json(), "file": ""}
    assert here.compare(f"{address}/elsewhere/x.pickle.gz").delta_bytes == 0


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/missing/run.pickle", "^run.pickle: The server answered 404. Check the address.$"),
        ("/cut/run.pickle", r"^run.pickle: The download ended after 5,000 of [\d,]+ bytes. Try again.$"),
        ("/page/run.pickle", "^run.pickle: It is a web page without a snapshot inside."),
        ("/file/run.pickle", "^run.pickle: The download failed .*ftp"),
    ],
)
def test_what_comes_in_its_place_is_refused(path, words, address):
    with pytest.raises(TraceError, match=words):
        memviz.open(address + path)


def test_more_bytes_or_seconds_than_allowed_are_not_taken(address, monkeypatch):
    monkeypatch.setenv("MEMVIZ_MAX_FILE_BYTES", "5000")
    with pytest.raises(TraceError, match="exceeds the limit of 5,000 bytes. If you trust the file, raise"):
        memviz.open(f"{address}/good/run.pickle.gz")
    # Without the time limit all 200 bytes would arrive, and the file be refused for its contents.
    monkeypatch.setenv("MEMVIZ_MAX_SECONDS", "0.5")
    with pytest.raises(TraceError, match="The download timed out after 0.5 s. Download it first"):
        memviz.open(f"{address}/drip/run.pickle")


def test_nobody_there_is_said():
    with serving() as address:
        pass
    with pytest.raises(TraceError, match="^x.pickle: The download failed"):
        memviz.open(f"{address}/good/x.pickle")


@pytest.mark.parametrize(
    "address", ["file:///etc/passwd", "ftp://host/x.pickle", "s3://bucket/x", "http://", "http://["]
)
def test_other_addresses_are_refused(address):
    with pytest.raises(UsageError):
        memviz.open(address)


ONLY_NUMPY = """
import sys

class Nothing:
    def find_spec(self, name, path=None, target=None):
        first = name.partition(".")[0]
        if first not in sys.stdlib_module_names and first not in ("memviz", "numpy"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Nothing())
import memviz
"""
ALL_OF_IT = """
trace = memviz.open("sample_traces/training.pickle.gz")
results = [trace, trace.summary(), trace.peak(), trace.live_at(event=5).by("module"), trace.by("category")]
results += [trace.segments_at(event=1000), trace.compare("sample_traces/training-checkpointed.pickle.gz")]
results += [trace.replay(settings="expandable_segments:True", memory="24GiB")]
for result in results:
    assert str(result) and result._repr_html_() and result.as_json() and result.columns()
print(len(results))
"""


REFUSED = """
import memviz.errors
try:
    {asked}
except memviz.errors.LibraryNeeded as error:
    print(error)
"""


def run(program: str) -> tuple[str, str]:
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip(), done.stderr


def test_all_of_it_works_with_numpy_alone():
    assert run(ONLY_NUMPY + ALL_OF_IT) == ("8", "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("library", "asked"),
    [
        ("pandas", "memviz.open('sample_traces/training.pickle.gz').peak().to_frame()"),
        ("plotly", "memviz.figures.timeline(memviz.open('sample_traces/training.pickle.gz'))"),
        ("torch", "memviz.predicting"),
    ],
)
def test_what_needs_a_library_that_is_not_there_names_the_remedy(library: str, asked: str) -> None:
    said, wrong = run(ONLY_NUMPY + REFUSED.format(asked=asked))
    assert wrong == ""
    remedy = "`pip install -r requirements.txt` brings it."
    assert said.startswith(f"This needs {library}, which is not installed here. {remedy}")


def test_memviz_itself_imports_nothing():
    program = (
        "import sys, memviz; print(*sorted(name for name in sys.modules if name.startswith(('memviz.', 'numpy'))))"
    )
    assert run(program) == ("", "")


CELLS = {
    "open": f"import memviz; training = memviz.open({str(TRAINING)!r}); training",
    "peak": "training.peak()",
    "print": "print(training.peak())",
    "live": "training.live_at(event=1000, by='category')",
    "segments": "training.segments_at(event=1000)",
    "compare": "compared = training.compare('sample_traces/training-checkpointed.pickle.gz'); compared",
    "replay": "training.replay(settings='expandable_segments:True')",
    "frame": "training.by('category').to_frame()",
    "timeline": "memviz.figures.timeline(training)",
    "bars": "memviz.figures.peak(training.by('category'))",
    "icicle": "memviz.figures.icicle(training)",
    "map": "memviz.figures.segments(training)",
    "waterfall": "memviz.figures.waterfall(compared)",
    "error": "memviz.open('nothing.pickle')",
}
ANSWERS = ("open", "peak", "live", "segments", "compare", "replay")
FIGURES = ("timeline", "bars", "icicle", "map", "waterfall")
PLOTLY = "application/vnd.plotly.v1+json"


def outputs_of(cells: dict[str, str]) -> dict[str, list[Any]]:
    """Run the cells of a notebook in a kernel; return the outputs of each."""
    for library in ("nbclient", "ipykernel"):
        pytest.importorskip(library, reason=f"{library} is not installed: tests/requirements.txt has it")
    import nbformat
    from nbclient import NotebookClient
    from traitlets.config import Config

    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells.values()])
    # Ports are chosen first and bound by the kernel later, when another process may have taken one.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        by_files = {"transport": "ipc", "ip": os.path.join(folder, "kernel")}
        config = Config({"KernelManager": by_files if os.name == "posix" else {}})
        patience = {"timeout": PATIENCE_SECONDS, "startup_timeout": PATIENCE_SECONDS}
        resources = {"metadata": {"path": str(ROOT)}}
        NotebookClient(notebook, config=config, allow_errors=True, resources=resources, **patience).execute()
    return {name: cell["outputs"] for name, cell in zip(cells, notebook.cells, strict=True)}


@pytest.fixture(scope="module")
def executed() -> Iterator[dict[str, list[Any]]]:
    yield outputs_of(CELLS)


def test_only_the_cell_that_should_fails(executed):
    assert [name for name, shown in executed.items() if any(part.output_type == "error" for part in shown)] == ["error"]
    (failed,) = executed["error"]
    with pytest.raises(TraceError) as caught:
        memviz.open("nothing.pickle")
    assert (failed.ename, failed.evalue) == ("TraceError", str(caught.value))


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_shows_its_sentence_and_its_table(name, executed):
    (shown,) = executed[name]
    assert set(shown.data) == {"text/plain", "text/html"}
    assert shown.data["text/plain"].endswith(".") and "\n" not in shown.data["text/plain"]
    assert "<table" in shown.data["text/html"] and "<strong>" in shown.data["text/html"]


def test_it_prints_the_same_sentence_and_a_frame_shows_as_a_frame(executed):
    (printed,), (shown,) = executed["print"], executed["peak"]
    assert printed.text == shown.data["text/plain"] + "\n" == f"{memviz.open(TRAINING).peak()}\n"
    (shown,) = executed["frame"]
    assert 'class="dataframe"' in shown.data["text/html"] and "activation" in shown.data["text/html"]


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_drawn_by_the_notebook(name, executed):
    (shown,) = executed[name]
    assert shown.data[PLOTLY]["data"]
