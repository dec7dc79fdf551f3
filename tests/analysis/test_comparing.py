"""Changes from one peak to the others: rows that add up."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memviz.analysis.comparing.align import PEAK, SCALE, START, Aligned, Alignment, align, list_alignments
from memviz.analysis.comparing.changes import (
    Change,
    Moment,
    Score,
    Setting,
    best_grouping,
    changes,
    scores,
    setting_differences,
)
from memviz.analysis.comparing.matching import GROUPINGS, MatchKey, common_tails, has_modules, match_allocations
from memviz.analysis.devices import DeviceName
from memviz.analysis.purpose.categories import BEFORE_RECORDING, KINDS, kinds
from memviz.errors import UsageError
from memviz.trace.model import Category, Trace
from tests.real import FOLDER, read_once, requires_real
from tests.traces import alloc, block, event, frame, free, pairs_of, ranges, read, segment, snapshot, trace_of


def at(function: str, line: int = 1) -> list[dict]:
    return [frame(function, "model.py", line)]


def before_and_after() -> list:
    first = trace_of([alloc(1, 100, frames=at("f")), alloc(2, 30, frames=at("g", 2))])
    second = trace_of([alloc(1, 250, frames=at("f")), alloc(3, 40, frames=at("h", 3)), alloc(4, 2, frames=at("f"))])
    return pairs_of(first, second)


def test_rows_are_ordered_by_their_change_and_add_up():
    found = changes(before_and_after())
    assert found.rows == (
        Change(MatchKey("model.py:1 f\n", "model.py:1", "", "f"), "unknown", (100, 252), (1, 2)),
        Change(MatchKey("model.py:3 h\n", "model.py:3", "", "h"), "unknown", (0, 40), (0, 1)),
        Change(MatchKey("model.py:2 g\n", "model.py:2", "", "g"), "unknown", (30, 0), (1, 0)),
    )
    assert [row.delta(1) for row in found.rows] == [152, 40, -30]
    assert found.delta(1) == 162 == sum(row.delta(1) for row in found.rows)


def test_sites_come_first_and_categories_that_nobody_knows_never():
    assert best_grouping(before_and_after()) == "site"
    first, second = (trace_of([alloc(1, 100, frames=at(name))]) for name in ("f", "g"))
    assert best_grouping(pairs_of(first, second)) == "site"


@requires_real
@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [("forward-fp32", "forward-bf16", "site"), ("train-complete", "train-mixed-precision", "category")],
)
def test_two_different_steps_are_compared_by_category(first, second, expected):
    assert best_grouping(pairs_of(*(read_once(FOLDER / f"{name}.pickle") for name in (first, second)))) == expected


@requires_real
def test_the_copies_of_autocast_are_rows_of_their_own():
    pair = pairs_of(*(read_once(FOLDER / f"{name}.pickle") for name in ("forward-fp32", "forward-bf16")))
    found = changes(pair)
    assert found.delta(1) == 222_994_432
    assert [(row.thing.label, row.thing.operator, row.delta(1)) for row in found.rows[:2]] == [
        ("linear.py:15", "_to_copy", 72_769_536),
        ("swiglu.py:32", "_to_copy", 56_623_104),
    ]


def test_a_score_is_the_peak_by_kind_what_was_reserved_and_how_long_it_took():
    reserve = event("segment_alloc", 0, 4096, time_us=10)
    trace = trace_of([reserve, alloc(0, 1000, time_us=70)], [segment(0, 4096, [block(0, 1024, 1000)])])
    baseline = trace_of([alloc(0, 600)])
    assert scores(pairs_of(baseline, trace)) == (
        Score((("unknown", 600),), {"unknown": 600}, 600, reserved_bytes=0, delta_bytes=0, duration_us=None),
        Score(
            (("unknown", 1000),),
            {"unknown": 1000},
            live_bytes=1000,
            reserved_bytes=4096,
            delta_bytes=400,
            duration_us=60,
        ),
    )
    assert scores(pairs_of(trace))[0].gap_bytes == 3096


# -- the same place in two versions of a program


def program(home: str, *, forward: int, cache: int | None = None, moved: int = 0) -> Trace:
    """The same source in some home, with lines that may have moved down."""
    model, train = f"{home}/proj/model.py", f"{home}/proj/train.py"
    events = [alloc(1, forward, frames=[frame("forward", model, 10 + moved), frame("main", train, 50 + moved)])]
    if cache is not None:
        events.append(alloc(2, cache, frames=[frame("keep", f"{home}/proj/cache.py", 3), frame("main", train, 60)]))
    return trace_of([*events, alloc(3, 7)])


def brief(*traces: Trace, by: str = "site") -> list[tuple[str, tuple[int, ...]]]:
    return [(row.thing.name, row.bytes) for row in changes(pairs_of(*traces), by).rows]


def test_growth_at_the_same_place_is_one_row_though_home_and_line_differ():
    found = changes(pairs_of(program("/home/a", forward=100), program("/srv/b", forward=200, cache=30, moved=2)))
    assert found.moments == (
        Moment("hand-made", DeviceName("0"), 1, live_bytes=107, reserved_peak_bytes=0, event_count=2),
        Moment("hand-made", DeviceName("0"), 2, live_bytes=237, reserved_peak_bytes=0, event_count=3),
    )
    assert [(row.thing.name, row.bytes, row.counts) for row in found.rows] == [
        ("model.py:10, 12 forward", (100, 200), (1, 1)),
        ("cache.py:3 keep", (0, 30), (0, 1)),
        ("no stack recorded", (7, 7), (1, 1)),
    ]


def test_many_traces_are_ordered_by_their_largest_difference():
    found = brief(program("/a", forward=100), program("/a", forward=90), program("/a", forward=100, cache=30))
    assert found[:2] == [("cache.py:3 keep", (0, 0, 30)), ("model.py:10 forward", (100, 90, 100))]


def test_by_line_a_moved_line_is_another():
    found = brief(program("/a", forward=100), program("/b", forward=100, moved=2), by="line")
    assert found[:2] == [("model.py:10", (100, 0)), ("model.py:12", (0, 100))]


def test_by_stack_without_python_the_operators_count():
    one, two = (trace_of([alloc(1, n, frames=[frame(f"at::_ops::mm::call({n})", "??", 0)])]) for n in (5, 8))
    assert brief(one, two, by="stack") == [("at::_ops::mm mm", (5, 8))]


def test_other_groupings_compare_by_their_names():
    one = trace_of([alloc(1, 5), alloc(9, 5), alloc(17, 4)])
    two = trace_of([alloc(1, 5, stream=7), alloc(9, 3, stream=7)])
    assert brief(one, two, by="size") == [("5 B each", (10, 5)), ("4 B each", (4, 0)), ("3 B each", (0, 3))]
    assert brief(one, two, by="stream") == [("default stream", (14, 0)), ("stream 7", (0, 8))]
    assert brief(one, two, by="phase") == [("unknown", (14, 8))]
    assert brief(one, two, by="annotation") == [("no annotation", (14, 8))]
    assert brief(one, two, by="pool") == [("default pool", (14, 8))]


def test_settings_that_differ_are_listed():
    one, two = program("/a", forward=1), program("/a", forward=1)
    settings = {"expandable_segments": False, "same": 1, "roundup": {"1": 0, "2": 0}}
    one = replace(one, settings=settings)
    two = replace(two, settings={**settings, "expandable_segments": True, "roundup": {"1": 0, "2": 4}, "new": "x"})
    assert setting_differences([one, two]) == (
        Setting("expandable_segments", ("False", "True")),
        Setting("new", (None, "x")),
        Setting("roundup.2", ("0", "4")),
    )


some_frames = st.lists(
    st.builds(
        frame,
        st.sampled_from(["f", "g", "at::_ops::mm::call()"]),
        st.sampled_from(["/a/x.py", "/b/x.py", "/a/y.py", "/l/site-packages/z.py", "??"]),
        st.integers(1, 3),
    ),
    max_size=3,
)
some_programs = st.lists(st.tuples(st.integers(1, 2**40), some_frames), min_size=1, max_size=6).map(
    lambda rows: trace_of([alloc(i, size, frames=frames) for i, (size, frames) in enumerate(rows)])
)


@given(st.lists(some_programs, min_size=2, max_size=3), st.sampled_from(GROUPINGS), st.none() | st.integers(0, 3))
def test_rows_and_rest_add_up_to_every_difference(traces, by, top):
    found = changes(pairs_of(*traces), by)
    for i, moment in enumerate(found.moments):
        assert sum(row.bytes[i] for row in found.rows[:top]) + found.after(top).bytes[i] == moment.live_bytes
        assert sum(row.delta(i) for row in found.rows[:top]) + found.after(top).delta(i) == found.delta(i)
        count = len(traces[i].devices[0].events)
        assert sum(row.counts[i] for row in found.rows[:top]) + found.after(top).counts[i] == count
    assert len({row.thing.key for row in found.rows}) == len(found.rows)


@given(some_programs, st.sampled_from(GROUPINGS))
def test_a_trace_does_not_differ_from_itself(trace, by):
    found = changes(pairs_of(trace, trace), by)
    assert all(row.bytes[0] == row.bytes[1] and row.counts[0] == row.counts[1] for row in found.rows)


def one_file(lines: dict[int, int]) -> Trace:
    """A model in one file: every allocation in some class's `forward`."""
    return trace_of(
        [
            alloc(512 * i, size, frames=[frame("forward", "model.py", line)])
            for i, (line, size) in enumerate(lines.items())
        ]
    )


def test_lines_that_moved_are_one_site():
    assert brief(one_file({10: 100, 20: 50}), one_file({11: 300, 21: 50})) == [("model.py:10-21 forward", (150, 350))]


def operator(name: str) -> dict:
    return frame(f"at::_ops::{name}::call(at::Tensor const&)", "??", 0)


def one_operator(*, home: str = "/home/a", moved: int = 0, call: str = "mm", native: bool = True) -> Trace:
    """Return a trace of one allocation by an operator, called from another file."""
    python = [frame("forward", f"{home}/proj/model.py", 10 + moved), frame("main", f"{home}/proj/train.py", 50)]
    return trace_of([alloc(1, 100, frames=[*([operator(call)] if native else []), *python])])


def used(by: str, *traces: Trace) -> list[list[MatchKey]]:
    """The things of each trace's allocations."""
    pairs = pairs_of(*traces)
    found = match_allocations(pairs, by)
    return [[found.things[of_row] for of_row in found.of_rows(i, pair)] for i, pair in enumerate(pairs)]


@pytest.mark.parametrize(
    ("other", "site"),
    [
        (one_operator(home="/srv/b"), MatchKey("model.py:10 forward\nmm", "model.py:10", "mm", "forward")),
        # Where lines have moved the function is the site, and operators do not count where a trace has none.
        (one_operator(moved=2), MatchKey("model.py forward\nmm", "model.py:10, 12", "mm", "forward")),
        (one_operator(native=False), MatchKey("model.py:10 forward\n", "model.py:10", "", "forward")),
    ],
    ids=["another checkout", "moved lines", "without operators"],
)
def test_a_site_is_its_line_and_operator_as_far_as_both_have_them(other, site):
    assert used("site", one_operator(), other) == [[site], [site]]


def test_another_operator_on_the_same_line_is_another_site():
    first, second = used("site", one_operator(), one_operator(call="_to_copy"))
    assert [first[0].detail, second[0].detail] == ["mm", "_to_copy"]
    assert first[0].key != second[0].key


def test_a_line_more_than_the_other_has_is_no_move():
    more = trace_of([alloc(i, 9, frames=[frame("forward", "model.py", line)]) for i, line in enumerate((10, 20))])
    first, second = used("site", trace_of([alloc(0, 9, frames=[frame("forward", "model.py", 10)])]), more)
    assert [each.label for each in (*first, *second)] == ["model.py:10", "model.py:10", "model.py:20"]


def test_another_branch_is_no_move_while_most_lines_are_shared():
    one, two = (
        trace_of([alloc(i, 9, frames=[frame("forward", "model.py", line)]) for i, line in enumerate(lines)])
        for lines in ((10, 20, 30), (10, 25, 30))
    )
    first, second = used("site", one, two)
    assert [each.label for each in second] == ["model.py:10", "model.py:25", "model.py:30"]
    assert first[0] == second[0]


def test_a_stack_is_ones_own_frames_and_the_operator_without_library_frames():
    first, second = used("stack", one_operator(), one_operator(home="/srv/b"))
    assert first == second
    assert (first[0].label, first[0].detail) == ("model.py:10 ← train.py:50", "mm")
    library = frame("wrap", "/x/site-packages/torch/nn/modules/module.py", 1500)
    model, main = frame("forward", "model.py", 10), frame("main", "train.py", 50)
    first, second = used(
        "stack", trace_of([alloc(1, 5, frames=[model, main])]), trace_of([alloc(1, 5, frames=[model, library, main])])
    )
    assert first == second


def test_stacks_without_ones_own_frames_are_told_apart_by_their_site():
    names = ("AddmmBackward0", "MulBackward0")
    nodes = [frame(f"torch::autograd::generated::{name}::apply(x)", "??", 0) for name in names]
    found = used("stack", trace_of([alloc(i, 5, frames=[node]) for i, node in enumerate(nodes)]))[0]
    assert [each.label for each in found] == [f"{name} (backward)" for name in names]


def test_every_allocation_of_a_row_is_found_wherever_in_time():
    here, there = [frame("f", "m.py", 1)], [frame("g", "m.py", 9)]
    trace = trace_of(
        [alloc(1, 5, frames=here), free(1, 5), alloc(1, 5, frames=there), alloc(2, 5, frames=here), alloc(3, 5)]
    )
    pair = pairs_of(trace)[0]
    assert match_allocations([pair], "site").rows_of(0, pair, "m.py:1 f\n").tolist() == [0, 2]
    assert match_allocations([pair], "site").rows_of(0, pair, "nothing").tolist() == []


def test_what_was_there_before_without_a_stack_is_a_kind_of_its_own():
    trace = trace_of([alloc(4096, 10)], [segment(0, 8192, [block(0, 100), block(4096, 512, 10)])])
    assert [KINDS[kind] for kind in kinds(*pairs_of(trace)[0])] == [BEFORE_RECORDING, Category.UNKNOWN.label]


def test_without_modules_all_is_one_thing():
    assert used("module", one_operator())[0] == [MatchKey("", "no module recorded")]
    assert not has_modules(pairs_of(one_operator())[0])


def test_an_unknown_grouping_is_refused_with_the_choices():
    with pytest.raises(UsageError, match="site, line, stack, category, module, holder, phase"):
        match_allocations(pairs_of(one_operator()), "colour")


@pytest.mark.parametrize("by", ["site", "category", "module", "stack"])
def test_a_trace_without_allocations_has_nothing(by):
    empty = trace_of([event("segment_alloc", 0, 4096)])
    assert match_allocations(pairs_of(empty, one_operator()), by).of_rows(0, pairs_of(empty)[0]).tolist() == []


F = "f"


@pytest.mark.parametrize(
    ("sides", "tails"),
    [
        # The same checkout in two homes.
        ([[("/home/a/p/x.py", F)], [("/home/b/p/x.py", F)]], ["x.py", "x.py"]),
        # One trace has two files of that name, so that more of the path counts everywhere.
        ([[("/home/a/p/x.py", F), ("/home/a/q/x.py", F)], [("/srv/p/x.py", F)]], ["p/x.py", "q/x.py", "p/x.py"]),
        # Another function is another place, and does not count for this one.
        ([[("/a/p/x.py", F), ("/a/q/x.py", "g")], [("/b/p/x.py", F)]], ["x.py", "x.py", "x.py"]),
        # Below Python there is no path.
        ([[("", "MmBackward0")], [("", "MmBackward0")]], ["", ""]),
        # A whole path that is the end of another.
        ([[("/x.py", F), ("/a/x.py", F)], [("/a/x.py", F)]], ["x.py", "a/x.py", "a/x.py"]),
        ([[], []], []),
    ],
)
def test_places_are_told_apart_by_as_little_as_it_takes(sides, tails):
    found = common_tails(sides)
    assert [found[place] for side in sides for place in side] == tails


def run(count: int, *steps: tuple[str, int, int], first_us: int = 1000, step_us: int = 10) -> Trace:
    """Allocations one after the other, and annotations as (name, first event, last event)."""
    events = [alloc(i, 8, time_us=first_us + step_us * i) for i in range(count)]
    marks = ((name, first_us + step_us * first, first_us + step_us * last) for name, first, last in steps)
    return read(snapshot(events, external_annotations=ranges(*marks)))


def test_whole_runs_stand_beginning_over_beginning_and_on_one_scale_the_shorter_ends_earlier():
    assert align(pairs_of(run(9), run(99))) == Aligned("event", ((0, 10), (0, 100)), (0, 1), (0, 1))
    found = align(pairs_of(run(9), run(99)), SCALE)
    assert found == Aligned("event", ((0, 100), (0, 100)), (0, 1), (0, 1))


def test_peaks_stand_in_one_line_on_one_scale():
    late = run(9)
    early = read(snapshot([alloc(0, 99), free(0, 99), *(alloc(i, 1) for i in range(1, 4))]))
    found = align(pairs_of(late, early), PEAK)
    assert found.spans == ((9, 19), (1, 11))
    assert found.extent == found.focus == (-0.9, 0.6)


def test_a_step_stands_over_the_same_step_however_many_events_it_takes():
    short = run(10, ("ProfilerStep#0", 0, 4), ("ProfilerStep#1", 5, 9))
    long = run(30, ("ProfilerStep#7", 0, 9), ("ProfilerStep#8", 10, 29))
    found = align(pairs_of(short, long), Alignment("step", number=1))
    assert found.spans == ((6, 11), (11, 31))
    assert found.extent == (-1.2, 1)
    assert found.focus == (-0.04, 1)


def test_an_annotation_stands_where_it_comes_first():
    found = align(pairs_of(run(10, ("a", 2, 3), ("a", 5, 6)), run(10, ("a", 4, 8))), Alignment("annotation", name="a"))
    assert found.spans == ((3, 5), (5, 10))


def test_on_the_axis_of_time_places_are_microseconds_since_the_first_event():
    first, second = run(10, ("a", 2, 3)), run(10, ("a", 4, 8), first_us=7, step_us=1000)
    assert align(pairs_of(first, second), Alignment("annotation", name="a"), "time").spans == ((20, 30), (4000, 8000))
    assert align(pairs_of(first, second), START, "time").spans == ((0, 90), (0, 9000))


def test_a_step_within_one_microsecond_still_has_a_width():
    assert align(pairs_of(run(10, ("a", 3, 3))), Alignment("annotation", name="a"), "time").spans == ((30, 31),)


def test_only_what_all_have_is_offered():
    first = run(20, ("ProfilerStep#0", 0, 9), ("ProfilerStep#1", 10, 19), ("b", 2, 3), ("a", 1, 4))
    second = run(20, ("ProfilerStep#0", 0, 9), ("a", 1, 4), ("c", 5, 6))
    assert list_alignments(pairs_of(first, second)) == (
        START,
        SCALE,
        PEAK,
        Alignment("step", number=0),
        Alignment("annotation", name="a"),
    )


def test_a_step_that_ended_before_the_recording_is_not_offered():
    late = run(9, ("ProfilerStep#0", -5, -2), ("ProfilerStep#1", 2, 4))
    found = list_alignments(pairs_of(run(9, ("ProfilerStep#0", 0, 1), ("ProfilerStep#1", 2, 4)), late))
    assert [way.number for way in found if way.kind == "step"] == [1]


def test_a_step_or_times_that_one_of_them_lacks_are_refused_by_name():
    with pytest.raises(UsageError, match="a step 2"):
        align(pairs_of(run(4), run(4)), Alignment("step", number=1))
    with pytest.raises(UsageError, match="by event"):
        align(pairs_of(read(snapshot([alloc(1, 1)])), run(3)), START, "time")


@given(st.lists(st.integers(1, 40), min_size=1, max_size=5), st.sampled_from([START, SCALE, PEAK]))
def test_every_run_lies_within_the_extent(counts, way):
    found = align(pairs_of(*map(run, counts)), way)
    for (begin, end), count in zip(found.spans, counts, strict=True):
        low, high = (begin + share * (end - begin) for share in found.extent)
        assert low <= 1e-9
        assert high >= count + 1 - 1e-9
