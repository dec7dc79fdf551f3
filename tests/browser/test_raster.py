"""The drawing in the browser is the drawing in Python, pixel by pixel."""

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memviz.analysis.lifetimes import lifetimes
from memviz.analysis.timeline import timeline
from memviz.figures.colouring import colouring, pixel_palette
from memviz.figures.packed_timeline import PackedTimeline, pack_allocations, pack_colouring, spans
from memviz.figures.raster import View, allocation_grid, colour_grid, column_instants
from memviz.trace.load import load_trace
from memviz.trace.model import Trace
from tests.browser.mounting import load
from tests.real import FOLDER, requires_real
from tests.traces import alloc, free, trace_of

SHARES_A_PAGE = True

MODULES = ("memory_timeline/packed.js", "memory_timeline/spans.js", "memory_timeline/raster.js")
SAMPLES = Path(__file__).parents[2] / "sample_traces"

DRAW = """
async ({ timeline, groups, view, palette, dimmed, byGroup, groupCount, lit }) => {
  const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const { packed: P, spans: S, raster: R } = memviz;
  const spans = new S.Spans(await P.unpack(timeline.header, bytes(timeline.body)), timeline.header.events);
  const group = (await P.unpack(groups.header, bytes(groups.body))).group;
  const instants = R.columnInstants(spans, view);
  const grid = new Int32Array(view.rows * view.columns);
  const pixels = new Uint32Array(view.rows * view.columns);
  const colours = { group, groups: groupCount, palette, dimmed, page: 0xffffff };
  const chosen = lit === null ? null : Uint8Array.from(lit);
  R.paint(spans, instants, view, colours, { byGroup, lit: chosen, grid, pixels });
  const packed = (array) => {
    const raw = new Uint8Array(array.buffer);
    let text = "";
    for (let i = 0; i < raw.length; i += 32768) text += String.fromCharCode(...raw.subarray(i, i + 32768));
    return btoa(text);
  };
  return { instants: [...instants], grid: packed(grid), pixels: packed(pixels), live: [...spans.live.slice(0, 50)] };
}
"""


def sent(packed: PackedTimeline) -> dict[str, Any]:
    return {"header": packed.header, "body": base64.b64encode(packed.body).decode()}


def drawn_by_browser(
    page: Any, trace: Trace, view: View, *, meaning: str, by_group: bool, lit: list[int] | None
) -> dict:
    device = trace.devices[0]
    colours = colouring(trace, device, meaning)
    page.goto("about:blank")
    load(page, *MODULES)
    return page.evaluate(
        DRAW,
        {
            "timeline": sent(pack_allocations(device)),
            "groups": sent(pack_colouring(colours)),
            "view": vars(view),
            "palette": pixel_palette(colours, dark=False).reshape(-1).tolist(),
            "dimmed": pixel_palette(colours, dark=False, dimmed=True).reshape(-1).tolist(),
            "byGroup": by_group,
            "groupCount": len(colours.labels),
            "lit": lit,
        },
    )


def same(
    page: Any, trace: Trace, view: View, *, meaning: str = "category", by_group: bool = True, lit: Any = None
) -> None:
    device = trace.devices[0]
    found = drawn_by_browser(page, trace, view, meaning=meaning, by_group=by_group, lit=lit)
    colours = colouring(trace, device, meaning)
    rows = spans(lifetimes(device), colours)
    instants = column_instants(timeline(device).live, view)
    assert found["instants"] == instants.tolist()
    grid = allocation_grid(rows, instants, view, by_group=by_group)
    shape = (view.rows, view.columns)
    assert np.array_equal(np.frombuffer(base64.b64decode(found["grid"]), np.int32).reshape(shape), grid)
    pixels = np.frombuffer(base64.b64decode(found["pixels"]), np.uint32).reshape(shape)[::-1]
    plain = colour_grid(grid, colours.group, pixel_palette(colours, dark=False), 0xFFFFFF)
    if lit is None:
        assert np.array_equal(pixels, plain)
    else:
        faint = colour_grid(grid, colours.group, pixel_palette(colours, dark=False, dimmed=True), 0xFFFFFF)
        chosen = np.array(lit, dtype=bool)[np.where(grid >= 0, grid, 0)] | (grid < 0)
        assert np.array_equal(pixels, np.where(chosen, plain, faint))


def small() -> Trace:
    return trace_of(
        [alloc(0, 1000), alloc(512, 3000), free(0, 1000), alloc(0, 2**40 + 1), alloc(9, 1), free(512, 3000)]
    )


@pytest.mark.parametrize("by_group", [True, False])
def test_a_small_trace(page: Any, by_group: bool) -> None:
    same(page, small(), View(0, 8, 40, 60, 2.0**40 * 1.1), by_group=by_group)
    same(page, small(), View(1.3, 3.7, 33, 60, 5000.5), by_group=by_group)
    same(page, small(), View(0, 8, 40, 60, 3500.5, 900.25), by_group=by_group)


def test_one_block_of_512_bytes_fills_the_height_above_32_gibibytes(page: Any) -> None:
    gib = 1 << 30
    trace = trace_of([alloc(0, 32 * gib), *(alloc(32 * gib + 512 * i, 512) for i in range(3))])
    view = View(4, 5, 5, 64, 32.0 * gib + 1024, 32.0 * gib + 512)
    same(page, trace, view, by_group=False)
    grid = allocation_grid(spans(lifetimes(trace.devices[0]), colouring(trace, trace.devices[0])), np.array([4]), view)
    assert (grid == 2).all()


VIEWS = (
    lambda last, top: View(0, last, 700, 300, top * 1.1),
    lambda last, top: View(last * 0.31, last * 0.37, 640, 200, top * 1.02),
    lambda last, top: View(last * 0.9 + 0.5, last + 3, 97, 50, top / 3),
    lambda last, top: View(last * 0.2, last * 0.8, 211, 157, top * 0.61, top * 0.35),
    lambda last, top: View(last * 0.4, last * 0.7, 90, 80, top * 0.5 + 4096, top * 0.5 - 3.5),
)


MEANINGS = ("category", "site", "size", "module", "category")


@pytest.mark.parametrize("number", range(len(VIEWS)))
@pytest.mark.parametrize("path", sorted(SAMPLES.glob("*.pickle.gz")), ids=lambda path: path.name.split(".")[0])
def test_samples(page: Any, path: Path, number: int) -> None:
    trace = load_trace(path)
    live = timeline(trace.devices[0]).live
    same(page, trace, VIEWS[number](len(live), float(live.max())), meaning=MEANINGS[number])


def test_what_is_not_lit_is_dimmed(page: Any) -> None:
    trace = load_trace(SAMPLES / "training.pickle.gz")
    count = len(lifetimes(trace.devices[0]))
    live = timeline(trace.devices[0]).live
    same(page, trace, VIEWS[0](len(live), float(live.max())), lit=[i % 3 == 0 for i in range(count)])


@requires_real
@pytest.mark.parametrize("name", ["train-complete", "train-late-start", "forward-many-segments"])
def test_real_traces(page: Any, name: str) -> None:
    trace = load_trace(FOLDER / f"{name}.pickle")
    live = timeline(trace.devices[0]).live
    same(page, trace, VIEWS[0](len(live), float(live.max())))
