"""The same allocation in several traces."""

import pytest

from memviz.analysis.comparing.matching import MatchKey, common_tails, has_modules, match_allocations
from memviz.analysis.purpose.categories import BEFORE_RECORDING, KINDS, kinds
from memviz.errors import UsageError
from memviz.trace.model import Category, Trace
from tests.traces import alloc, block, event, frame, free, pairs_of, segment, trace_of


def operator(name: str) -> dict:
    return frame(f"at::_ops::{name}::call(at::Tensor const&)", "??", 0)


def program(*, home: str = "/home/a", moved: int = 0, call: str = "mm", native: bool = True) -> Trace:
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
        (program(home="/srv/b"), MatchKey("model.py:10 forward\nmm", "model.py:10", "mm", "forward")),
        # Where lines have moved the function is the site, and operators do not count where a trace has none.
        (program(moved=2), MatchKey("model.py forward\nmm", "model.py:10, 12", "mm", "forward")),
        (program(native=False), MatchKey("model.py:10 forward\n", "model.py:10", "", "forward")),
    ],
    ids=["another checkout", "moved lines", "without operators"],
)
def test_a_site_is_its_line_and_operator_as_far_as_both_have_them(other, site):
    assert used("site", program(), other) == [[site], [site]]


def test_another_operator_on_the_same_line_is_another_site():
    first, second = used("site", program(), program(call="_to_copy"))
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


def test_a_stack_is_ones_own_frames_and_the_operator():
    first, second = used("stack", program(), program(home="/srv/b"))
    assert first == second
    assert (first[0].label, first[0].detail) == ("model.py:10 ← train.py:50", "mm")


def test_library_frames_between_make_no_other_stack():
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
    assert used("module", program())[0] == [MatchKey("", "no module recorded")]
    assert not has_modules(pairs_of(program())[0])


def test_an_unknown_grouping_is_refused_with_the_choices():
    with pytest.raises(UsageError, match="site, line, stack, category, module, holder, phase"):
        match_allocations(pairs_of(program()), "colour")


@pytest.mark.parametrize("by", ["site", "category", "module", "stack"])
def test_a_trace_without_allocations_has_nothing(by):
    empty = trace_of([event("segment_alloc", 0, 4096)])
    assert match_allocations(pairs_of(empty, program()), by).of_rows(0, pairs_of(empty)[0]).tolist() == []


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
