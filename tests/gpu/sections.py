"""All results as the tables of README.md, written between its marks and never by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from memviz.units import bytes_text, count_text, delta_text
from tests.gpu.results import Results

README = Path(__file__).parent / "README.md"
Found = Mapping[str, Any]
Rows = list[list[str]]


def write_readme(results: Results, readme: Path = README) -> list[str]:
    """The names of the sections that were filled; those without results stay as they are."""
    text, filled = readme.read_text(encoding="utf-8"), []
    for name, section in SECTIONS.items():
        done = [each for each in results.of(name) if "result" in each]
        if done:
            text = between(text, name, f"{_where(results)}\n\n{section(done)}")
            filled.append(name)
    readme.write_text(text, encoding="utf-8")
    return filled


def write_samples(results: Results) -> Path | None:
    done = [each for each in results.of("samples") if "result" in each]
    if not done:
        return None
    path = results.folder_of("samples") / "README.md"
    path.write_text(f"{_where(results)}\n\n{_samples(done)}\n", encoding="utf-8")
    return path


def between(text: str, name: str, inside: str) -> str:
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, after = text[: text.index(begin) + len(begin)], text[text.index(end) :]
    return f"{before}\n{inside}\n{after}"


def _where(results: Results) -> str:
    measured = [each["machine"] for part in ("capture", "check", "seeds", "cost") for each in results.of(part)]
    on = next((each for each in measured if each.get("device")), {})
    words = [f"torch {on.get('torch')}", f"CUDA {on.get('cuda')}", f"cuDNN {on.get('cudnn')}"]
    words += [f"{name} {on[name]}" for name in ("diffusers", "transformers") if name in on]
    words += [f"driver, memory: {on.get('nvidia_smi')}", f"commit {on.get('commit')}", f"source {on.get('source')}"]
    return f"Measured on {on.get('device')}; {'; '.join(words)}."


def table(head: Sequence[str], rows: Rows) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(str(cell).replace('|', '/') for cell in line)} |" for line in lines)


def _check(done: Sequence[Found]) -> str:
    rows = [
        [
            each["name"],
            str(answer["what"]),
            str(answer["expected"]),
            str(answer["got"]),
            "" if answer["ok"] else "differs",
        ]
        for each in done
        for answer in each["result"]["answers"]
        if not answer["ok"] or each["name"] not in ("attention",)
    ]
    return table(["check", "what", "expected", "found", ""], rows)


def _truth(done: Sequence[Found]) -> str:
    rows, errors = [], {"allocated": [0.0][:0], "reserved": [0.0][:0]}
    for each in done:
        found = each["result"]
        cells = []
        for name, list_of in errors.items():
            list_of.append(abs(found[name]["error_percent"]))
            measured, predicted = found[name]["measured"], found[name]["predicted"]
            cells += [bytes_text(measured), bytes_text(predicted), f"{found[name]['error_percent']:+.2f} %"]
        rows.append([each["name"], *cells, reasons(found)])
    head = ["run", "allocated", "predicted", "error", "reserved", "predicted", "error", "live otherwise at the peak"]
    summary = ", ".join(
        f"{name}: median {median(each):.2f} %, largest {max(each):.2f} %" for name, each in errors.items()
    )
    return f"{len(rows)} runs. {summary}.\n\n{table(head, rows)}"


def reasons(found: Found) -> str:
    """Where to look for the reason: what differs most between the two peaks."""
    named = [*found["categories"][:2], *found["modules"][:1]]
    return "; ".join(f"{each['what'] or 'no module'} {delta_text(each['more_bytes'])}" for each in named) or "nothing"


def _replay(done: Sequence[Found]) -> str:
    head = ["snapshot", "settings", "events", "addresses off", "first"]
    rows = []
    for each in done:
        found = each["result"]
        off = f"{count_text(found['addresses_off'])} of {count_text(found['addresses'])}"
        rows.append(
            [each["name"], found["settings"] or "defaults", count_text(found["events"]), off, found["first"] or ""]
        )
    return table(head, rows)


def _what_if(done: Sequence[Found]) -> str:
    head = ["run", "settings", "reserved", "predicted", "off by", "segments", "predicted", "ran out", "predicted"]
    rows = []
    for each in done:
        found = each["result"]
        measured, predicted = found["reserved"]["measured"], found["reserved"]["predicted"]
        ends = [_ran_out(found["ran_out"][name]) for name in ("measured", "predicted")]
        counts = [count_text(found["segments"][name]) for name in ("measured", "predicted")]
        off = delta_text(predicted - measured) if predicted != measured else "0"
        peaks = [bytes_text(measured), bytes_text(predicted), off]
        rows.append([each["name"], found["settings"] or "defaults", *peaks, *counts, *ends])
    return table(head, rows)


def _ran_out(found: Found | None) -> str:
    return "no" if found is None else f"request {count_text(found['served'] + 1)}, {bytes_text(found['asked'])}"


def _seeds(done: Sequence[Found]) -> str:
    head = ["table", "of", "way", "published s", "s here", "spread", "relative difference", "noise", "small twin"]
    rows = []
    for each in done:
        for way in each["result"].get("ways", ()):
            noise, twin = (way["noise"] or {}).get("relative_l2"), way["twin"]
            figures = (way["published_seconds"], way["seconds"], way["spread"], way["apart"]["relative_l2"], noise)
            words = twin["verdict"]["words"] if twin else ""
            rows.append([each["arguments"]["seed"], way["settings"], way["way"], *map(_number, figures), words])
    return table(head, rows)


def _seeds_predicted(done: Sequence[Found]) -> str:
    head = [
        "table",
        "case",
        "figure",
        "published",
        "predicted as published",
        "predicted here",
        "measured here",
        "error",
    ]
    rows = []
    for each in done:
        found = each["result"]
        for then, here, really in zip(found["as_published"], found["here"], found["measured"], strict=True):
            error = f"{100 * (here['ours'] / really['ours'] - 1):+.2f} %" if really["ours"] else ""
            figures = [_number(value) for value in (then["published"], then["ours"], here["ours"], really["ours"])]
            rows.append([each["name"], then["case"], then["figure"], *figures, error])
    return table(head, rows)


def _cost(done: Sequence[Found]) -> str:
    ways = list(done[0]["result"]["ratio"])
    rows = []
    for each in done:
        found = each["result"]
        ratios = [f"{found['ratio'][way]:.3f}" for way in ways]
        rows.append([each["name"], f"{1000 * found['seconds']['off']:,.2f} ms", *ratios])
    return table(["run", "a step, not recorded", *ways], rows)


def _samples(done: Sequence[Found]) -> str:
    head = ["file", "events", "peak", "reserved", "what it shows", "model", "command", "sha256"]
    rows = []
    for each in done:
        found = each["result"]
        figures = [count_text(found["events"]), bytes_text(found["peak_bytes"]), bytes_text(found["reserved_bytes"])]
        name = f"`{found['file']}`" if found["is_small"] else f"`{found['file']}` (too large)"
        rows.append([name, *figures, found["shows"], found["model"], f"`{found['command']}`", f"`{found['sha256']}`"])
    return table(head, rows)


def _number(value: Any) -> str:
    return "" if value is None else f"{float(value):.4g}"


SECTIONS: dict[str, Callable[[Sequence[Found]], str]] = {
    "check": _check,
    "truth": _truth,
    "replay": _replay,
    "what-if": _what_if,
    "seeds-predicted": _seeds_predicted,
    "seeds": _seeds,
    "cost": _cost,
}
