"""A result as rows of a table: in README.md between its marks, never by hand, and in a line at the terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from memviz.units import bytes_text, count_text, delta_text
from tests.gpu.results import Results

README = Path(__file__).parent / "README.md"
Found = Mapping[str, Any]
Rows = list[list[str]]


class Table(NamedTuple):
    head: tuple[str, ...]
    rows: Callable[[Found], Rows]
    """Of one case, whose name comes first; from all that stands in OUT about it."""


def write_readme(results: Results, readme: Path = README) -> list[str]:
    """The names of the tables that were filled; those without results stay as they are."""
    text, filled = readme.read_text(encoding="utf-8"), []
    for part, table in TABLES.items():
        done = [each for each in results.of(part) if "result" in each]
        if done and _begin(part) in text:
            text = _between(text, part, "\n\n".join([_where(results), *_summary(part, done), _drawn(table, done)]))
            filled.append(part)
    readme.write_text(text, encoding="utf-8")
    return filled


def write_samples(results: Results) -> Path | None:
    done = [each for each in results.of("samples") if "result" in each]
    if not done:
        return None
    path = results.folder_of("samples") / "README.md"
    path.write_text(f"{_where(results)}\n\n{_drawn(TABLES['samples'], done)}\n", encoding="utf-8")
    return path


def in_a_line(found: Found) -> str:
    """The first row, for whoever waits at the terminal."""
    table = TABLES[found["part"]]
    rows = table.rows(found)
    named = ", ".join(
        f"{head} {cell}" for head, cell in zip(table.head[1:], (rows or [[]])[0][1:], strict=False) if cell
    )
    return f"{named} (and {len(rows) - 1} more)" if len(rows) > 1 else named


def differing(found: Found) -> list[str]:
    """Answers of `check` that are not the expected ones."""
    wrong = [each for each in found["result"].get("answers", ()) if not each["ok"]]
    return [f"{each['what']}: expected {each['expected']}, found {each['got']}" for each in wrong]


def _begin(part: str) -> str:
    return f"<!-- {part}: begin -->"


def _between(text: str, part: str, inside: str) -> str:
    before, rest = text.split(_begin(part))
    after = rest[rest.index(f"<!-- {part}: end -->") :]
    return f"{before}{_begin(part)}\n{inside}\n{after}"


def _where(results: Results) -> str:
    measured = [each["machine"] for part in ("capture", "check", "seeds", "cost") for each in results.of(part)]
    on = next((each for each in measured if each.get("device")), {})
    words = [f"torch {on.get('torch')}", f"CUDA {on.get('cuda')}", f"cuDNN {on.get('cudnn')}"]
    words += [f"{name} {on[name]}" for name in ("diffusers", "transformers") if name in on]
    words += [f"driver, memory: {on.get('nvidia_smi')}", f"commit {on.get('commit')}", f"source {on.get('source')}"]
    return f"Measured on {on.get('device')}; {'; '.join(words)}."


def _summary(part: str, done: Sequence[Found]) -> list[str]:
    if part != "truth":
        return []
    errors = {name: [abs(each["result"][name]["error_percent"]) for each in done] for name in ("allocated", "reserved")}
    words = [f"{name}: median {median(each):.2f} %, largest {max(each):.2f} %" for name, each in errors.items()]
    return [f"{len(done)} runs. {', '.join(words)}."]


def _drawn(table: Table, done: Sequence[Found]) -> str:
    rows = [row for each in done for row in table.rows(each)]
    lines = [list(table.head), ["---"] * len(table.head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)


def _check(found: Found) -> Rows:
    """Of `attention`, which asks about a hundred calls, only what differs."""
    return [
        [found["name"], str(each["what"]), str(each["expected"]), str(each["got"]), "" if each["ok"] else "differs"]
        for each in found["result"]["answers"]
        if not each["ok"] or found["name"] != "attention"
    ]


def _capture(found: Found) -> Rows:
    result, seconds = found["result"], found["result"].get("seconds")
    if result["ran_out"]:
        return [[found["name"], "", "", "", result["ran_out"]]]
    peaks = [bytes_text(result[f"peak_{name}_bytes"]) for name in ("allocated", "reserved")]
    return [[found["name"], *peaks, f"{1000 * seconds['median']:,.1f} ms" if seconds else "", ""]]


def _truth(found: Found) -> Rows:
    result, cells = found["result"], []
    for name in ("allocated", "reserved"):
        one = result[name]
        cells += [bytes_text(one["measured"]), bytes_text(one["predicted"]), f"{one['error_percent']:+.2f} %"]
    return [[found["name"], *cells, reasons(result)]]


def reasons(result: Found) -> str:
    """Where to look for the reason: what differs most between the two peaks."""
    named = [*result["categories"][:2], *result["modules"][:1]]
    return "; ".join(f"{each['what'] or 'no module'} {delta_text(each['more_bytes'])}" for each in named) or "nothing"


def _replay(found: Found) -> Rows:
    result = found["result"]
    off = f"{count_text(result['addresses_off'])} of {count_text(result['addresses'])}"
    settings = result["settings"] or "defaults"
    return [[found["name"], settings, count_text(result["events"]), off, result["first"] or ""]]


def _what_if(found: Found) -> Rows:
    result = found["result"]
    measured, predicted = result["reserved"]["measured"], result["reserved"]["predicted"]
    off = delta_text(predicted - measured) if predicted != measured else "0"
    counts = [count_text(result["segments"][name]) for name in ("measured", "predicted")]
    ends = [_ran_out(result["ran_out"][name]) for name in ("measured", "predicted")]
    settings = result["settings"] or "defaults"
    return [[found["name"], settings, bytes_text(measured), bytes_text(predicted), off, *counts, *ends]]


def _ran_out(at: Found | None) -> str:
    return "no" if at is None else f"request {count_text(at['served'] + 1)}, {bytes_text(at['asked'])}"


def _seeds(found: Found) -> Rows:
    """Of those timed; peaks stand beside their predictions."""
    rows = []
    for way in found["result"].get("ways", ()):
        noise, twin = (way["noise"] or {}).get("relative_l2"), way["twin"]
        figures = (way["published_seconds"], way["seconds"], way["spread"], way["apart"]["relative_l2"], noise)
        words = twin["verdict"]["words"] if twin else ""
        rows.append([found["arguments"]["seed"], way["settings"], way["way"], *map(_number, figures), words])
    return rows


def _seeds_predicted(found: Found) -> Rows:
    rows = []
    columns = (found["result"][name] for name in ("as_published", "here", "measured"))
    for then, here, really in zip(*columns, strict=True):
        error = f"{100 * (here['ours'] / really['ours'] - 1):+.2f} %" if really["ours"] else ""
        figures = [_number(value) for value in (then["published"], then["ours"], here["ours"], really["ours"])]
        rows.append([found["name"], then["case"], then["figure"], *figures, error])
    return rows


def _cost(found: Found) -> Rows:
    result = found["result"]
    ratios = [f"{ratio:.3f}" for ratio in result["ratio"].values()]
    return [[found["name"], f"{1000 * result['seconds']['off']:,.2f} ms", *ratios]]


def _samples(found: Found) -> Rows:
    result = found["result"]
    name = f"`{result['file']}`" if result["is_small"] else f"`{result['file']}` (too large)"
    figures = [count_text(result["events"]), bytes_text(result["peak_bytes"]), bytes_text(result["reserved_bytes"])]
    return [[name, *figures, result["shows"], result["model"], f"`{result['command']}`", f"`{result['sha256']}`"]]


def _number(value: Any) -> str:
    return "" if value is None else f"{float(value):.4g}"


_TWICE = ("reserved", "predicted", "off by", "segments", "predicted", "ran out", "predicted")
_FIGURES = ("published", "predicted as published", "predicted here", "measured here", "error")
_WAYS = ("no stacks", "python stacks", "all stacks", "memviz")

TABLES = {
    "check": Table(("check", "what", "expected", "found", ""), _check),
    "capture": Table(("run", "allocated", "reserved", "a step", "ran out"), _capture),
    "what-if": Table(("run", "settings", *_TWICE), _what_if),
    "seeds": Table(
        ("table", "of", "way", "published s", "s here", "spread", "relative difference", "noise", "small twin"), _seeds
    ),
    "cost": Table(("run", "a step, not recorded", *_WAYS), _cost),
    "replay": Table(("snapshot", "settings", "events", "addresses off", "first"), _replay),
    "truth": Table(
        ("run", "allocated", "predicted", "error", "reserved", "predicted", "error", "live otherwise at the peak"),
        _truth,
    ),
    "seeds-predicted": Table(("table", "case", "figure", *_FIGURES), _seeds_predicted),
    "samples": Table(("file", "events", "peak", "reserved", "what it shows", "model", "command", "sha256"), _samples),
}
