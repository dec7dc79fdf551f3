"""The table of cases: the name of a golden file, and the text that the file must hold. Most are in `cases.toml`."""

import json
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from tests.contracts.workplace import Workplace

HERE = Path(__file__).parent
GOLDEN = HERE / "golden"
RELEASES = GOLDEN / "releases.json"
"""Library releases of the golden predictions."""
TABLES = tomllib.loads((HERE / "cases.toml").read_text(encoding="utf-8"))
SAMPLES = ("training", "training-checkpointed", "out-of-memory", "late-start")


@dataclass(frozen=True)
class Case:
    name: str
    text: Callable[[Workplace], str]
    is_predicted: bool = True
    """Depends on the installed PyTorch."""

    @property
    def asks_page(self) -> bool:
        return self.name.startswith("endpoint-")

    @property
    def is_slow(self) -> bool:
        return self.is_predicted or self.asks_page or self.name in ("raster-digests.json", "replay-search.json")


def all_cases() -> Iterator[Case]:
    for name, line in TABLES["commands"].items():
        yield Case(name, partial(output_of, line), is_predicted(line))
    for name, words in TABLES["exports"].items():
        yield Case(name, partial(exported, name, words), is_predicted=False)
    yield Case("export-digests.json", digests)
    yield Case("options.json", options, is_predicted=False)
    yield Case("raster-digests.json", raster_digests, is_predicted=False)
    yield Case("program-peaks.json", program_peaks)
    for name, (function, *values) in TABLES["endpoints"].items():
        yield Case(f"endpoint-{name}", partial(answer_of, function, values), function == "run")
    yield Case("endpoint-names.json", endpoint_names, is_predicted=False)


def is_predicted(line: str) -> bool:
    words = shlex.split(line)
    predicts = words[0] in ("run", "fit", "predict", "reproduce") and "--list" not in words
    return predicts or not {*words}.isdisjoint(TABLES["made"])


def output_of(line: str, place: Workplace) -> str:
    """JSON where the command writes that, else its words and how it ended."""
    words = shlex.split(line)
    make_files(place, words)
    done = place.memviz(words)
    if "--json" in words:
        assert done.returncode == 0, (done.returncode, done.stderr)
        # The script's own output precedes the last line, which is the command's.
        return place.json(json.loads(done.stdout.splitlines()[-1] if words[0] == "predict" else done.stdout))
    # Progress messages depend on time.
    errors = done.stderr if done.returncode or words[0] == "predict" else ""
    return place.alike(f"$ memviz {line}\n\n{done.stdout}{errors}\nexit status {done.returncode}\n")


def make_files(place: Workplace, words: list[str]) -> None:
    for word in words:
        if word in TABLES["made"] and not (place.folder / word).exists():
            done = place.memviz(shlex.split(TABLES["made"][word]))
            assert done.returncode == 0, (done.returncode, done.stderr)


def exported(name: str, words: str, place: Workplace) -> str:
    make_files(place, shlex.split(words))
    done = place.memviz(["export", *shlex.split(words), "-o", name])
    assert done.returncode == 0, (done.returncode, done.stderr)
    written = place.alike((place.folder / name).read_text(encoding="utf-8"))
    return place.json(json.loads(written)) if name.endswith(".json") else written


def digest(content: bytes) -> str:
    return sha256(content).hexdigest()


def digests(place: Workplace) -> str:
    """Return digests of tables that are too long to store."""
    found = {}
    for file in (
        *(f"{name}.pickle.gz" for name in SAMPLES),
        *(name for name in TABLES["made"] if "parquet" not in name),
    ):
        for table in ("allocations", "events", "stacks"):
            written = exported("table.csv", f"{file} --table {table}", place)
            found[f"{file} {table}"] = f"{written.count(chr(10))} lines, {digest(written.encode())}"
    found["training.pickle.gz as JSON"] = digest(exported("trace.json", "training.pickle.gz", place).encode())
    return place.json(found)


def options(place: Workplace) -> str:
    """Names of commands, and what each takes with which default and choices."""
    from memviz.commands import parser

    (commands,) = (each.choices for each in parser()._actions if isinstance(each.choices, dict))
    found: dict[str, dict[str, str]] = {}
    for name, command in commands.items():
        found[name] = {}
        for each in command._actions:
            choices = f" of {' '.join(each.choices)}" if each.choices else ""
            found[name][" ".join(each.option_strings) or each.dest] = f"{each.default}{choices}"
    return place.json(found)


def raster_digests(place: Workplace) -> str:
    """Return digests of the timeline's pixels, the reference for the browser's."""
    from memviz.analysis.lifetimes import lifetimes
    from memviz.analysis.timeline import timeline
    from memviz.figures.colouring import colouring, pixel_palette
    from memviz.figures.packed_timeline import spans
    from memviz.figures.raster import View, allocation_grid, colour_grid, column_instants
    from memviz.trace.load import load_trace

    found = {}
    for name in SAMPLES:
        trace = load_trace(place.folder / f"{name}.pickle.gz")
        device = trace.devices[0]
        live = timeline(device).live
        last, top = len(live), float(live.max())
        for view in (
            View(0, last, 700, 300, top * 1.1),
            View(last * 0.2, last * 0.8, 211, 157, top * 0.61, top * 0.35),
        ):
            for meaning in ("category", "site", "size", "module"):
                colours = colouring(trace, device, meaning)
                instants = column_instants(live, view)
                grid = allocation_grid(spans(lifetimes(device), colours), instants, view)
                for dark in (False, True):
                    pixels = colour_grid(grid, colours.group, pixel_palette(colours, dark=dark), 0xFFFFFF)
                    key = f"{name} {view.columns} x {view.rows} {meaning} {'dark' if dark else 'light'}"
                    found[key] = digest(pixels.astype("<u4").tobytes())
    return place.json(found)


def program_peaks(place: Workplace) -> str:
    """Peaks of the scripts of `tests/programs`; tests of `tests/truth` hold those of its programs."""
    from tests.programs.test_programs import CASES
    from tests.programs.test_programs import HERE as PROGRAMS

    found = {}
    for name, case in CASES.items():
        done = place.memviz(["predict", "--json", *case.options, str(PROGRAMS / f"{name}.py"), *case.arguments])
        assert done.returncode == 0, (done.returncode, done.stderr)
        told = json.loads(done.stdout.splitlines()[-1])
        found[name] = {kind: told[f"peak_{kind}_bytes"] for kind in ("requested", "allocated", "reserved")}
    return place.json(found)


def answer_of(function: str, values: list[Any], place: Workplace) -> str:
    """JSON, or what people read of a page."""
    answer = place.client.predict(*(place.uploaded(value) for value in values), api_name=f"/{function}")
    if function != "report":
        return place.json(answer)
    page = re.sub(r"(?s)<(style|script).*?</\1>", "", Path(answer).read_text(encoding="utf-8"))
    return place.alike(re.sub(r"\s*\n\s*", "\n", re.sub(r"<[^>]*>", "\n", page)))


def endpoint_names(place: Workplace) -> str:
    """Parameters of each endpoint with their defaults, and what comes back."""
    told = place.client.view_api(return_format="dict", print_info=False)["named_endpoints"]
    found = {}
    for name, about in sorted(told.items()):
        takes = {
            each["parameter_name"]: each["parameter_default"] if each["parameter_has_default"] else "<required>"
            for each in about["parameters"]
        }
        found[name] = {"takes": takes, "returns": [each["label"] for each in about["returns"]]}
    return place.json(found)
