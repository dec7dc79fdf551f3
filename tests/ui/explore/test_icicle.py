"""Live bytes by stack as HTML."""

from dataclasses import replace

import numpy as np
import pytest

from memviz.analysis.breakdown import StackBreakdown, WeightedRows, weighted_stacks
from memviz.analysis.callstacks.stack_tree import OTHER
from memviz.analysis.lifetimes import lifetimes
from memviz.analysis.purpose.categories import KINDS, kinds
from memviz.figures.theme import DARK, LIGHT, mixed
from memviz.trace.model import Category, Labels, Trace
from memviz.ui.explore.icicle import ROW_HEIGHT, boxes, icicle_html, page_share
from tests.traces import MiB, alloc, frame, trace_of
from tests.ui.page import elements, words

MAIN, TRAIN, MODEL = (
    frame("main", "/p/train.py", 1),
    frame("train", "/p/train.py", 2),
    frame("forward", "/p/model.py", 3),
)


@pytest.fixture
def trace() -> Trace:
    """main and train are one chain; below it the model takes 3 MiB and train itself 1; 2 MiB have no stack."""
    return trace_of(
        [
            alloc(0, 3 * MiB, frames=[MODEL, TRAIN, MAIN]),
            alloc(4 * MiB, MiB, frames=[TRAIN, MAIN]),
            alloc(8 * MiB, 2 * MiB),
        ]
    )


def found(trace: Trace, path: tuple[int, ...] = (), most_nodes: int = 200) -> StackBreakdown:
    device = trace.devices[0]
    size = lifetimes(device).size
    weighted = WeightedRows(np.arange(len(size)), size, kinds(trace, device), KINDS)
    return weighted_stacks(trace, device, weighted, path, most_nodes=most_nodes)


def labels(html: str) -> list[str]:
    """Return the labels of the boxes, in order."""
    return [words(part.partition("</")[0].partition(">")[2]) for part in html.split("mv-node")[1:]]


def test_boxes_are_as_wide_as_their_bytes_and_chains_share_one(trace):
    assert labels(icicle_html(trace, found(trace))) == [
        "all 6.00 MiB",
        "train:1 main › train:2 train 4.00 MiB",
        "no stack recorded 2.00 MiB",
        "model:3 forward 3.00 MiB",
    ]
    assert [(box.row, box.left, box.width) for box in boxes(found(trace))] == [
        (0, 0, 1),
        (1, 0, 4 / 6),
        (1, 4 / 6, 2 / 6),
        (2, 0, 0.5),
    ]


def test_every_byte_can_be_read_and_a_click_leads_to_what_hovering_lights(trace):
    titles = [element["title"] for element in elements(icicle_html(trace, found(trace)), "button")]
    assert titles[-1] == "forward /p/model.py:3\n3,145,728 B, 50 % of 6.00 MiB, 1 allocation\noutput 100 %"
    box = elements(icicle_html(trace, found(trace)), "button", data_act="zoom")[3]
    path = tuple(int(each) for each in box["data-light-group"].split(","))
    assert box["data-light-by"] == "path"
    assert int(found(trace, path).tree.bytes[len(path)]) == 3 * MiB


def test_zoomed_in_there_is_a_way_back(trace):
    path = next(box.path for box in boxes(found(trace)) if len(box.frames) > 1)
    html = icicle_html(trace, found(trace, path))
    assert words(html).startswith("all › train:1 main › train:2 train train:2 train 4.00 MiB")
    back = [element["data-value"] for element in elements(html, "button", data_act="zoom") if "data-value" in element]
    assert back == ["", str(path[0]), str(path[0])]


def test_what_is_pruned_or_too_narrow_to_be_seen_goes_into_other():
    events = [alloc(i * MiB, 1000 - i, frames=[frame(f"f{i}", "a.py", i), MAIN]) for i in range(300)]
    trace = trace_of(events)
    drawn = list(boxes(found(trace, most_nodes=20)))
    assert drawn[-1].frames == (OTHER,)
    assert sum(box.bytes for box in drawn if box.row == 2) == sum(1000 - i for i in range(300))
    assert labels(icicle_html(trace, found(trace, most_nodes=20)))[-1].startswith("(other) ")
    trace = trace_of([alloc(0, 10_000 * MiB, frames=[MODEL, MAIN]), alloc(1, 9, frames=[TRAIN, MAIN])])
    assert [(box.frames, box.bytes) for box in boxes(found(trace)) if box.row == 2][1:] == [((OTHER,), 9)]


def test_nothing_live_says_so(trace):
    assert words(icicle_html(trace, found(trace, (2, 2, 2)))).endswith("Nothing is live here.")


@pytest.mark.parametrize(("dominant", "whole", "share"), [(9, 9, 0), (8, 9, 50), (5, 10, 60), (1, 9, 70)])
def test_a_mixed_box_is_paler_the_less_one_kind_dominates(dominant, whole, share):
    assert page_share(dominant, whole) == share


def test_colours_are_the_themes_in_both_modes_and_text_stays_readable(trace):
    kinds = [Category.PARAMETER, Category.ACTIVATION, Category.PARAMETER]
    empty = np.zeros(3, np.int32)
    known = Labels(np.array(kinds, np.uint8), empty, empty.astype(np.uint8))
    trace = replace(trace, devices=(replace(trace.devices[0], event_labels=known),))
    styles = [element["style"] for element in elements(icicle_html(trace, found(trace)), "button")]
    light, dark = (mixed(each.category(Category.PARAMETER), each.page, 0.55) for each in (LIGHT, DARK))
    assert f"--mv-light:{light};--mv-dark:{dark};--mv-on-dark:#ffffff;" in styles[1]
    assert "--mv-light:#3569bf;--mv-on-light:#ffffff;--mv-dark:#396bbe;--mv-on-dark:#ffffff;" in styles[2]


def test_a_long_name_is_cut_and_rows_are_as_high_as_they_say():
    deep = [frame("x" * 50_000, f"{i}.py", i) for i in range(60)]
    trace = trace_of([alloc(0, 5, frames=deep), alloc(1, 5, frames=deep[1:])])
    html = icicle_html(trace, found(trace))
    assert len(html) < 20_000
    assert f"height:{3 * ROW_HEIGHT}px" in html
