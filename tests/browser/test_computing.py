"""Computations and drawings of the page's scripts without elements, compared to Python or to a law."""

import base64
import bisect
import itertools
import json
import random
import re
import threading
from collections.abc import Iterator
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
from memviz.ui.upload.arriving import Arriving
from tests.browser.conftest import SAMPLES
from tests.browser.mounting import load
from tests.real import FOLDER, requires_real
from tests.traces import alloc, free, trace_of

MODULES = (
    "axes.js",
    "base.js",
    "memory_timeline/overview.js",
    "memory_timeline/packed.js",
    "memory_timeline/raster.js",
    "memory_timeline/spans.js",
    "memory_timeline/viewport.js",
    "overlay/overlay.js",
    "reserved_plot/reserved_plot.js",
    "segment_map/canvas.js",
    "segment_map/layout.js",
    "arrivals/sending.js",
    "memory_timeline/data.js",
    "rank_map/rank_map.js",
    "words.js",
)
_SEED, _SEED_OF_WORDS = 11, 7
FIGURE_ROOM, WORDS_ROOM = 30, 16


@pytest.fixture(scope="module")
def scripts(browser: Any) -> Iterator[Any]:
    context = browser.new_context()
    page = context.new_page()
    load(page, *MODULES)
    yield page
    context.close()


@pytest.fixture
def chance() -> random.Random:
    return random.Random(_SEED)


# -- positions on the axes

VIEWPORT = """(cases) => cases.map((given) => {
  const viewport = Object.assign(new memviz.viewport.Viewport(), given);
  viewport.look({ ...viewport.bounded(given.first, given.last), ...viewport.boundedBytes(given.bottom, given.top) });
  const instants = Array.from({ length: Math.min(viewport.instants, 40) }, (_, i) => i);
  const spots = [0, 0.25, 0.5, 1].map((share) => share * viewport.width);
  return {
    view: [viewport.first, viewport.last],
    whole: viewport.whole(),
    instants: instants.map((instant) => viewport.instantAt(viewport.placeOf(instant))),
    spots: spots.map((x) => [x, viewport.xOf(viewport.placeAt(x))]),
    shared: spots.map((x) => [x, viewport.fromShared(viewport.toShared(x))]),
    height: viewport.boundedBytes(given.bottom, given.top),
    bytes: [0, 0.3, 1].map((part) => {
      const bytes = viewport.bottom + part * (viewport.top - viewport.bottom);
      return [bytes, viewport.bytesAt(viewport.yOf(bytes))];
    }),
    ticks: viewport.ticks(),
  };
})"""


def views(chance: random.Random, axis: str) -> list[dict[str, Any]]:
    cases = []
    for _ in range(300):
        events = chance.choice([1, 2, 5, 40, 5_000, 1_000_000])
        # Some events fall on the same µs.
        times = list(itertools.accumulate(chance.choice([0, 1, 7, 900]) for _ in range(min(events, 40))))
        end = events + 1 if axis == "event" else max(times[-1], 1)
        first, last = sorted(chance.uniform(-0.2, 1.2) * end for _ in range(2))
        linked = {"span": [0.1 * end, 0.8 * end], "extent": [-0.2, 1.4], "focus": [0, 1]}
        case = {"axis": axis, "instants": events + 1 if axis == "event" else len(times) + 1, "times": times}
        case |= {"first": first, "last": last, "width": chance.choice([200, 900, 2400]), "height": 300}
        most = chance.choice([1, 300, 10**9, 32 * 2**30])
        bottom, top = sorted(chance.uniform(-0.2, 1.2) * most for _ in range(2))
        case |= {"bottom": bottom, "top": chance.choice([top, bottom, bottom + 3]), "most": most}
        cases.append(case | {"align": {axis: linked} if chance.random() < 0.3 else None})
    return cases


@pytest.mark.parametrize("axis", ["event", "time"])
def test_a_view_lies_within_what_there_is_and_places_are_found_again(
    scripts: Any, chance: random.Random, axis: str
) -> None:
    cases = views(chance, axis)
    for case, answer in zip(cases, scripts.evaluate(VIEWPORT, cases), strict=True):
        (first, last), whole = answer["view"], answer["whole"]
        size = whole["last"] - whole["first"]
        assert whole["first"] - 1e-9 * size <= first < last <= whole["last"] + 1e-6 * size, case
        for pair in (*answer["spots"], *answer["shared"], *answer["bytes"]):
            assert pair[1] == pytest.approx(pair[0], rel=1e-6, abs=1e-6), case
        low, high = answer["height"]["bottom"], answer["height"]["top"]
        assert low >= 0 and high <= case["most"] * (1 + 1e-9), case
        assert high - low >= min(512, case["most"]) * (1 - 1e-6), case
        if axis == "event":
            assert answer["instants"] == list(range(len(answer["instants"])))
        else:
            # Of events at one time the last is visible; the first instant precedes all of them.
            times = case["times"]
            seen = [bisect.bisect_right(times, times[max(i - 1, 0)]) for i in range(len(answer["instants"]))]
            assert answer["instants"] == seen


@pytest.mark.parametrize("axis", ["event", "time"])
def test_ticks_lie_in_sight_apart_and_differ_in_words(scripts: Any, chance: random.Random, axis: str) -> None:
    cases = views(chance, axis)
    for case, answer in zip(cases, scripts.evaluate(VIEWPORT, cases), strict=True):
        (first, last), ticks = answer["view"], answer["ticks"]
        places = [tick["place"] for tick in ticks]
        words = [tick["text"].removeprefix("event ") for tick in ticks]
        assert all(first - 1e-6 <= place <= last + 1e-6 for place in places), case
        assert places == sorted(set(places)) and len(set(words)) == len(words), case
        assert len(ticks) <= max(case["width"] / 150, 2) + 2, case
        if axis == "event":
            assert [int(text.replace(",", "")) + 1 for text in words] == places
            assert [tick["text"].startswith("event ") for tick in ticks] == [i == 0 for i in range(len(ticks))]


def test_columns_of_equal_time_show_the_first_highest_moment_in_them(scripts: Any, chance: random.Random) -> None:
    """Compared to a loop over every event."""
    cases = []
    for _ in range(60):
        times = list(itertools.accumulate(chance.choice([0, 0, 1, 3, 50]) for _ in range(chance.randint(1, 80))))
        rows = sorted(chance.randrange(len(times) + 1) for _ in range(40))
        cases.append(
            {
                "times": times,
                "start": [row - before for row, before in zip(rows, [0, *rows], strict=False)],
                "span": [chance.randint(1, 30) for _ in rows],
                "size": [chance.randint(1, 1 << 30) for _ in rows],
                "columns": chance.choice([1, 7, 64]),
            }
        )
    found = scripts.evaluate(
        """(cases) => cases.map(({ times, start, span, size, columns }) => {
          const nothing = new Uint32Array(0);
          const spans = new memviz.spans.Spans({
            start: Uint32Array.from(start), span: Uint32Array.from(span), size_low: Uint32Array.from(size),
            size_high: new Uint32Array(size.length),
            reserved_at: nothing, reserved_low: nothing, reserved_high: nothing,
          }, times.length);
          const last = Math.max(times[times.length - 1], 1);
          const instants = memviz.raster.columnInstantsByTime(spans, times, { first: 0, last, columns });
          return { live: [...spans.live], instants: [...instants] };
        })""",
        cases,
    )
    for case, answer in zip(cases, found, strict=True):
        times, starts = case["times"], list(itertools.accumulate(case["start"]))
        live = [0] * (len(times) + 1)
        for start, span, size in zip(starts, case["span"], case["size"], strict=True):
            for instant in range(start, min(start + span, len(live))):
                live[instant] += size
        assert answer["live"] == live
        step, begin, expected = max(times[-1], 1) / case["columns"], bisect.bisect_right(times, 0), []
        for column in range(case["columns"]):
            end = bisect.bisect_right(times, (column + 1) * step)
            expected.append(max(range(begin, max(end, begin) + 1), key=lambda instant: (live[instant], -instant)))
            begin = end
        assert answer["instants"] == expected


# -- lines and labels


def test_a_line_in_steps_goes_through_every_value_and_has_no_step_between_equal_ones(
    scripts: Any, chance: random.Random
) -> None:
    cases = [[chance.choice([0, 0, 3, 200]) for _ in range(chance.randint(1, 50))] for _ in range(200)]
    found = scripts.evaluate(
        "(cases) => cases.map((values) => memviz.axes.steppedPath(values.length, (x) => 2 * x, (x) => values[x]))",
        cases,
    )
    for values, path in zip(cases, found, strict=True):
        begin, *steps = re.findall(r"M[\d.]+,[\d.]+|H[\d.]+V[\d.]+|H[\d.]+", path)
        assert "".join((begin, *steps)) == path
        edges = [(0.0, float(begin.split(",")[1]))]
        edges += [tuple(map(float, step[1:].split("V"))) for step in steps[:-1]]
        drawn = [edges[bisect.bisect_right([x for x, _ in edges], 2 * i) - 1][1] for i in range(len(values))]
        assert drawn == values
        assert all(a[1] != b[1] for a, b in itertools.pairwise(edges))
        assert steps[-1] == f"H{2 * len(values)}.0"
    assert scripts.evaluate("() => memviz.axes.steppedPath(0, () => 0, () => 0)") == ""


def test_labels_beside_a_plot_never_cover_each_other(scripts: Any, chance: random.Random) -> None:
    cases = []
    for _ in range(300):
        labels = [[chance.uniform(-50, 400), chance.choice(["", "1 MiB"]), f"{i}"] for i in range(chance.randint(1, 6))]
        cases.append([labels, 300])
    for (labels, height), placed in zip(
        cases, scripts.evaluate("(cases) => cases.map((given) => memviz.axes.spread(...given))", cases), strict=True
    ):
        assert sorted(words for _, _, words in placed) == sorted(words for _, _, words in labels)
        assert placed[-1][0] <= height - 14
        for (y, figure, _), (below, _, _) in itertools.pairwise(placed):
            assert below - y >= (FIGURE_ROOM if figure else WORDS_ROOM) - 1e-9
        if len(labels) == 1:
            assert placed[0][0] == min(max(labels[0][0], 8), height - 14)


def test_the_name_of_a_phase_is_never_cut_within_a_word(scripts: Any) -> None:
    names = ["forward", "ProfilerStep#12", "a.very.long.name", "two words", ""]
    found = scripts.evaluate(
        "(names) => names.map((name) => [0, 20, 60, 100, 400].map((width) => memviz.overview.phaseLabel(name, width)))",
        names,
    )
    for name, labels in zip(names, found, strict=True):
        assert set(labels) <= {name, re.split(r"[#.\s]", name)[0], ""}
        assert labels[-1] == name
        assert labels[0] == ""


# -- the other components


def test_messages_are_the_same_wherever_the_stream_is_cut(scripts: Any, chance: random.Random) -> None:
    sent = [
        {"kind": "reading", "words": "µ…", "bytes": 0},
        {"kind": "piece", "bytes": 300},
        {"kind": "opened", "bytes": 1},
    ]
    stream = b""
    for message in sent:
        header = json.dumps(message).encode()
        stream += len(header).to_bytes(4, "little") + header + chance.randbytes(message["bytes"])
    cuts = [sorted(chance.sample(range(len(stream)), chance.randint(0, 12))) for _ in range(100)]
    cuts.append(list(range(len(stream))))
    found = scripts.evaluate(
        """([stream, cuts]) => cuts.map((places) => {
          const messages = [];
          let rest = new Uint8Array(0);
          [...places, stream.length].forEach((end, i) => {
            const piece = Uint8Array.from(stream.slice(places[i - 1] ?? 0, end));
            const heard = memviz.sending.messagesIn(Uint8Array.of(...rest, ...piece));
            for (const { header, body } of heard.messages) {
              messages.push([header, body.length, body.reduce((a, b) => a + b, 0)]);
            }
            if (heard.needed <= heard.rest.length) throw new Error("a whole message was left");
            rest = heard.rest;
          });
          return [messages, rest.length];
        })""",
        [list(stream), cuts],
    )
    whole = found[0][0]
    assert [header for header, _, _ in whole] == sent
    assert [count for _, count, _ in whole] == [message["bytes"] for message in sent]
    assert all(answer == [whole, 0] for answer in found)


def test_words_on_a_block_can_be_read_on_every_colour(scripts: Any, chance: random.Random) -> None:
    """Contrast as WCAG has it; its limit for text is 4.5, and no colour gives more than 4.58 to both inks."""
    colours = [[chance.randrange(256) for _ in range(3)] for _ in range(3000)]
    inks = scripts.evaluate(
        "(colours) => colours.map(([r, g, b]) => memviz.canvas.textOn(((255 << 24) | (b << 16) | (g << 8) | r) >>> 0))",
        colours,
    )

    def light(rgb: list[int]) -> float:
        linear = [v / 255 / 12.92 if v / 255 <= 0.04045 else ((v / 255 + 0.055) / 1.055) ** 2.4 for v in rgb]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for colour, ink in zip(colours, inks, strict=True):
        both = sorted((light(colour), light([int(ink[i : i + 2], 16) for i in (1, 3, 5)])))
        assert (both[1] + 0.05) / (both[0] + 0.05) > 4, (colour, ink)


def test_the_column_of_an_event_is_the_last_that_begins_no_later(scripts: Any, chance: random.Random) -> None:
    first = sorted(chance.sample(range(-1, 4000), 300))
    events = list(range(-5, 4005, 3))
    found = scripts.evaluate(
        "([first, events]) => events.map((event) => memviz.reserved_plot.columnOf(event, { first }))", [first, events]
    )
    assert found == [max(bisect.bisect_right(first, event) - 1, 0) for event in events]


def test_an_overlay_says_the_change_with_its_sign(scripts: Any) -> None:
    mib = 1 << 20
    cases = [[5 * mib, 3 * mib], [3 * mib, 5 * mib], [mib, mib], [mib, None], [None, mib]]
    words = scripts.evaluate("(cases) => cases.map(([a, b]) => memviz.overlay.changeWords(a ?? NaN, b ?? NaN))", cases)
    assert words == ["5.00 MiB, +2.00 MiB", "3.00 MiB, −2.00 MiB", "1.00 MiB", "1.00 MiB", "nothing here"]


def test_shades_go_from_nothing_to_the_highest(scripts: Any) -> None:
    table = scripts.evaluate("[...memviz.rank_map.shadesOf(false, 0x123456)]")
    assert [table[0] & 0xFF, table[0] >> 8 & 0xFF, table[0] >> 16 & 0xFF] == [0x12, 0x34, 0x56]
    for dark in ("false", "true"):
        colours = scripts.evaluate(f"[...memviz.rank_map.shadesOf({dark}, 0)].slice(1)")
        sums = [sum(colour >> shift & 0xFF for shift in (0, 8, 16)) for colour in colours]
        assert sorted(sums, reverse=dark == "false") == sums, "each is as dark as the one before, or darker"
    assert scripts.evaluate("[0, 1, 128, 255].map((shade) => memviz.rank_map.bytesOfShade(shade, 254))") == [
        None,
        0,
        127,
        254,
    ]
    heights = scripts.evaluate("[1, 2, 40, 480, 481, 1024, 100000].map(memviz.rank_map.rowHeight)")
    assert heights == [22, 22, 12, 1, 1, 1, 1]


def test_what_is_at_hand_stays_within_its_bytes(scripts: Any) -> None:
    left = scripts.evaluate("""() => {
      const { keepPiece, piecesOf, isAtHand, MOST_BYTES } = memviz.data;
      const quarter = () => ({ columns: { group: new Uint8Array(MOST_BYTES / 4) } });
      for (const key of ["a", "b", "c", "d"]) keepPiece(key, "groups", quarter());
      piecesOf("a");
      keepPiece("e", "groups", quarter());
      const small = ["a", "b", "c", "d", "e"].filter((key) => piecesOf(key).groups);
      keepPiece("large", "timeline", { spans: { start: new Uint8Array(2 * MOST_BYTES) } });
      const alone = ["a", "c", "d", "e", "large"].filter((key) => Object.keys(piecesOf(key)).length);
      return [small, alone, isAtHand("large")];
    }""")
    assert left == [["a", "c", "d", "e"], ["large"], False], "the one used longest ago goes, the newest stays"


# -- rows of segments

LAYOUT = """([sizes, group, rowBytes]) => {
  const order = memviz.layout.drawingOrder(sizes, group, "size");
  const { pieces, heads, rows } = memviz.layout.shelve(sizes, group, order, rowBytes);
  const list = [...pieces.values()].flat().map((each) => [each.segment, each.row, each.from, each.start, each.length]);
  return { pieces: list, heads: heads.map((each) => [each.group, each.row]), rows };
}"""

OWNERS = """([sizes, tileSizes, rowBytes, width]) => {
  const first = [0];
  const [segment, offset, size] = [[], [], []];
  tileSizes.forEach((list, s) => {
    let at = 0;
    for (const each of list) { segment.push(s); offset.push(at); size.push(each); at += each; }
    first.push(size.length);
  });
  const L = memviz.layout;
  const layout = L.shelve(sizes, sizes.map(() => 0), sizes.map((_, i) => i), rowBytes);
  const tiles = { first, segment, offset, size };
  return { grid: [...L.owners(layout, tiles, width)], places: size.map((_, t) => L.placesOf(layout, tiles, t)) };
}"""


def test_a_segment_starts_where_it_fits_and_only_a_longer_one_is_broken(scripts: Any) -> None:
    found = scripts.evaluate(LAYOUT, [[4, 25, 4, 3], [0, 0, 0, 0], 10])
    assert found == {
        "pieces": [
            [1, 0, 0, 0, 10],
            [1, 1, 0, 10, 10],
            [1, 2, 0, 20, 5],
            [0, 2, 5, 0, 4],
            [2, 3, 0, 0, 4],
            [3, 3, 4, 0, 3],
        ],
        "heads": [[0, 0]],
        "rows": 4,
    }


def test_each_group_begins_a_row(scripts: Any) -> None:
    found = scripts.evaluate(LAYOUT, [[2, 3, 4], [1, 0, 1], 10])
    assert found["heads"] == [[0, 0], [1, 1]]
    assert found["pieces"] == [[1, 0, 0, 0, 3], [2, 1, 0, 0, 4], [0, 1, 4, 0, 2]]


@pytest.mark.parametrize("seed", range(5))
def test_every_byte_is_drawn_once_and_no_row_is_longer_than_the_others(scripts: Any, seed: int) -> None:
    dice = random.Random(seed)
    sizes = [dice.choice([1, 5, 20, 20, 333]) for _ in range(60)]
    found = scripts.evaluate(LAYOUT, [sizes, [dice.randrange(3) for _ in sizes], dice.choice([7, 40, 1000])])
    per_segment = [sum(each[4] for each in found["pieces"] if each[0] == i) for i in range(len(sizes))]
    assert per_segment == sizes
    spans = sorted((row, begin, begin + length) for _, row, begin, _, length in found["pieces"])
    assert all(a[0] < b[0] or a[2] <= b[1] for a, b in zip(spans, spans[1:], strict=False))


def test_a_pixel_shows_the_tile_that_covers_most_of_it(scripts: Any) -> None:
    found = scripts.evaluate(OWNERS, [[20, 10], [[3, 2, 1, 14], [10]], 20, 4])
    assert found["grid"] == [0, 3, 3, 3, 4, 4, -1, -1]
    found = scripts.evaluate(OWNERS, [[8], [[1, 1, 1, 5]], 4, 4])
    assert found["grid"] == [0, 1, 2, 3, 3, 3, 3, 3]
    assert found["places"][3] == [{"row": 0, "from": 3, "to": 4}, {"row": 1, "from": 0, "to": 4}]


@pytest.mark.parametrize("count", [1, 40, 700, 20_000])
def test_there_are_never_more_than_200_rows(scripts: Any, count: int) -> None:
    rows = scripts.evaluate(
        """(count) => { const sizes = Array.from({ length: count }, (_, i) => ((i * 37) % 50 + 1) * 2 ** 21);
        const [L, group] = [memviz.layout, sizes.map(() => 0)];
        const order = L.drawingOrder(sizes, group, 'size');
        return L.shelveWithin(sizes, group, order, L.chooseRowLength(sizes, group, order, 700)).rows; }""",
        count,
    )
    assert 1 <= rows <= 48


# -- files on their way

JUDGED = """(parts) => {
  const line = new memviz.sending.Line(40);
  return parts.map(([bytes, ms]) => {
    line.sent(bytes, ms);
    return line.isKnown ? (line.isFast ? "as it is" : "packed") : "unknown";
  });
}"""
SENT = """async ({ text, fast, rate }) => {
  const raw = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  let turn = 0;
  const line = { isKnown: true, rate, sent: () => turn++, get isFast() { return turn < fast; } };
  const parts = [];
  const file = new File([raw], "run.pickle");
  await memviz.sending.send(file, true, line, () => false, async ({ body, isPlain, isLast }, number) => {
    const bytes = new Uint8Array(await body.arrayBuffer());
    parts.push([btoa(Array.from(bytes, (c) => String.fromCharCode(c)).join("")), isPlain, isLast, number]);
  });
  return parts;
}"""


def test_the_line_is_judged_by_what_was_sent(scripts: Any) -> None:
    kilo = 1024
    # A slow first part is measured again; on a fast line one part is enough.
    assert scripts.evaluate(JUDGED, [[48 * kilo, 240], [48 * kilo, 235]]) == ["unknown", "packed"]
    assert scripts.evaluate(JUDGED, [[512 * kilo, 80], [4000 * kilo, 300]]) == ["as it is", "as it is"]
    # Of two the better counts: it is the machine that was slow.
    assert scripts.evaluate(JUDGED, [[48 * kilo, 60], [48 * kilo, 8]]) == ["unknown", "as it is"]
    # However slow the answer to nothing was, half a second for a little is a slow line.
    assert (
        scripts.evaluate(JUDGED.replace("Line(40)", "Line(900)"), [[48 * kilo, 240], [48 * kilo, 241]])[-1] == "packed"
    )
    # A busy machine is slow for once, and a small part slips through.
    assert scripts.evaluate(JUDGED, [[512 * kilo, 60], [16_000 * kilo, 900], [400 * kilo, 300]])[-1] == "as it is"
    assert scripts.evaluate(JUDGED, [[512 * kilo, 290], [512 * kilo, 300], [2000 * kilo, 1000], [400 * kilo, 45]])[
        1:
    ] == (["packed"] * 3)
    # It may change for good.
    slower = scripts.evaluate(JUDGED, [[512 * kilo, 50], *[[8000 * kilo, 9000]] * 3])
    assert slower[0] == "as it is" and slower[-1] == "packed"


def test_a_measure_is_a_small_part_of_any_file(scripts: Any) -> None:
    sizes = [0, 3_000_000, 160_000_000, 8 << 30]
    assert scripts.evaluate("(sizes) => sizes.map(memviz.sending.probeOf)", sizes) == [49_152, 49_152, 524_288, 524_288]


@pytest.mark.parametrize("fast", [0, 1, 2, 9])
@pytest.mark.parametrize("size", [0, 1, 65_536, 2_000_001])
def test_parts_as_they_are_and_packed_ones_are_one_file(scripts: Any, fast: int, size: int) -> None:
    """Half of it is random, and comes in several packed parts."""
    raw = random.Random(size).randbytes(size // 2) + bytes(size - size // 2)
    given = {"text": base64.b64encode(raw).decode(), "fast": fast, "rate": 300_000}
    parts = scripts.evaluate(SENT, given)
    arriving = Arriving(size, packed=True, gate=threading.Semaphore(0))
    for text, is_plain, _, _ in parts:
        arriving.add(base64.b64decode(text), plain=is_plain)
    arriving.end()
    assert arriving.read() == raw
    assert [is_last for *_, is_last, _ in parts] == [False] * (len(parts) - 1) + [True]
    assert [number for *_, number in parts] == list(range(len(parts)))
    plain = sum(is_plain for _, is_plain, *_ in parts)
    assert plain == (min(fast, max(-(-size // 300_000), 1)))


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
    scripts: Any, trace: Trace, view: View, *, meaning: str, by_group: bool, lit: list[int] | None
) -> dict:
    device = trace.devices[0]
    colours = colouring(trace, device, meaning)
    return scripts.evaluate(
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
    scripts: Any, trace: Trace, view: View, *, meaning: str = "category", by_group: bool = True, lit: Any = None
) -> None:
    device = trace.devices[0]
    found = drawn_by_browser(scripts, trace, view, meaning=meaning, by_group=by_group, lit=lit)
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
def test_a_small_trace(scripts: Any, by_group: bool) -> None:
    same(scripts, small(), View(0, 8, 40, 60, 2.0**40 * 1.1), by_group=by_group)
    same(scripts, small(), View(1.3, 3.7, 33, 60, 5000.5), by_group=by_group)
    same(scripts, small(), View(0, 8, 40, 60, 3500.5, 900.25), by_group=by_group)


def test_one_block_of_512_bytes_fills_the_height_above_32_gibibytes(scripts: Any) -> None:
    gib = 1 << 30
    trace = trace_of([alloc(0, 32 * gib), *(alloc(32 * gib + 512 * i, 512) for i in range(3))])
    view = View(4, 5, 5, 64, 32.0 * gib + 1024, 32.0 * gib + 512)
    same(scripts, trace, view, by_group=False)
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
def test_samples(scripts: Any, path: Path, number: int) -> None:
    trace = load_trace(path)
    live = timeline(trace.devices[0]).live
    same(scripts, trace, VIEWS[number](len(live), float(live.max())), meaning=MEANINGS[number])


def test_what_is_not_lit_is_dimmed(scripts: Any) -> None:
    trace = load_trace(SAMPLES / "training.pickle.gz")
    count = len(lifetimes(trace.devices[0]))
    live = timeline(trace.devices[0]).live
    same(scripts, trace, VIEWS[0](len(live), float(live.max())), lit=[i % 3 == 0 for i in range(count)])


@requires_real
@pytest.mark.parametrize("name", ["train-complete", "train-late-start", "forward-many-segments"])
def test_real_traces(scripts: Any, name: str) -> None:
    trace = load_trace(FOLDER / f"{name}.pickle")
    live = timeline(trace.devices[0]).live
    same(scripts, trace, VIEWS[0](len(live), float(live.max())))
