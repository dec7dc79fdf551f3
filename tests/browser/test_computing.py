"""Computations of the page's scripts without elements, and words, on one page, compared to Python or to a law."""

import base64
import bisect
import itertools
import json
import random
import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from memviz.ui.upload.arriving import Arriving
from tests.browser.mounting import load

MODULES = (
    "axes.js",
    "base.js",
    "event_list/event_list.js",
    "memory_timeline/legend.js",
    "memory_timeline/overview.js",
    "memory_timeline/raster.js",
    "memory_timeline/spans.js",
    "memory_timeline/total.js",
    "memory_timeline/viewport.js",
    "overlay/overlay.js",
    "reserved_plot/reserved_plot.js",
    "segment_map/canvas.js",
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


def test_the_legend_has_what_is_in_sight_or_live_and_adds_up_to_the_byte(scripts: Any, chance: random.Random) -> None:
    cases = []
    for _ in range(200):
        sizes = [
            chance.choice([0, chance.getrandbits(10), chance.getrandbits(40)]) for _ in range(chance.randint(1, 9))
        ]
        seen = [chance.getrandbits(1) for _ in sizes]
        cases.append([[f"g{i}" for i in range(len(sizes))], sizes, seen])
    answers = scripts.evaluate("(cases) => cases.map((given) => memviz.legend.legendItems(...given))", cases)
    for (labels, sizes, seen), items in zip(cases, answers, strict=True):
        assert sum(item["bytes"] for item in items) == sum(sizes)
        wanted = [name for name, size, is_seen in zip(labels, sizes, seen, strict=True) if size or is_seen]
        assert [item["label"] for item in items] == wanted


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


def test_columns_of_a_total_keep_its_highest_values(scripts: Any, chance: random.Random) -> None:
    cases = [
        [[chance.getrandbits(40) for _ in range(chance.randint(1, 90))], chance.randint(1, 60)] for _ in range(200)
    ]
    found = scripts.evaluate("(cases) => cases.map((given) => memviz.total.mostPerColumn(...given))", cases)
    for (values, count), columns in zip(cases, found, strict=True):
        assert len(columns) == count and max(columns) == max(values)
        for place, value in enumerate(values):
            first, last = place * count // len(values), -(-(place + 1) * count // len(values))
            assert all(columns[column] >= value for column in range(first, last))


# -- the other components


def test_every_row_of_a_list_of_any_length_can_be_scrolled_to(scripts: Any, chance: random.Random) -> None:
    cases = [[chance.choice([500, 10**6, 8 * 10**6, 24 * 10**6, 10**9]), chance.choice([300, 900])] for _ in range(60)]
    found = scripts.evaluate(
        """(cases) => cases.map(([total, view]) => {
          const scale = new memviz.event_list.Scale(total, view);
          const places = Array.from({ length: 101 }, (_, i) => (i / 100) * Math.max(total - view, 0));
          const bars = places.map((top) => scale.barOf(top));
          return { height: scale.height, bars, there: places.map((top, i) => [top, scale.topOf(bars[i])]) };
        })""",
        cases,
    )
    for (_, view), answer in zip(cases, found, strict=True):
        assert answer["height"] <= 8_000_000
        assert all(again == pytest.approx(top, abs=1e-3) for top, again in answer["there"])
        assert answer["bars"] == sorted(answer["bars"])
        assert answer["bars"][-1] == pytest.approx(max(answer["height"] - view, 0), abs=1e-6)


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
