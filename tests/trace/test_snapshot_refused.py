"""Files that are no snapshot, or contradict themselves, are refused as a TraceError."""

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memviz.errors import TraceError
from tests.traces import MiB, alloc, block, event, frame, free, read, segment, snapshot, trace_of

BASE = 0x7000_0000_0000
EVENT = alloc(
    BASE,
    1000,
    time_us=5,
    frames=[frame("forward", "model.py", 3)],
    forward_frames=["text"],
    compile_context="N/A",
    user_metadata="step 1",
    pool_id=(0, 3),
)


def own(**changed: Any) -> dict[str, Any]:
    labels = {"category": "AA==", "module": "AAAAAA==", "phase": "AA==", **changed}
    return {"version": 1, "modules": [""], "devices": [{"kind": "gpu", "device": 0, "events": labels}]}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (own(category="AAA="), "do not match its events"),
        (own(category="/w=="), "unknown values"),
        (own(module="AQAAAA=="), "unknown values"),
        (own(phase="?"), "not base64"),
        (own(phase=5), "not base64"),
        ({**own(), "modules": [5]}, "text was expected"),
    ],
)
def test_labels_that_do_not_fit_are_refused(value: Any, reason: str) -> None:
    with pytest.raises(TraceError, match=reason):
        trace_of([alloc(BASE, 1)], memviz=value)


@pytest.mark.parametrize(
    "value",
    [
        5,
        {},
        {"version": 2},
        {"version": 1, "modules": 5, "devices": 5, "about": 5},
        {"version": 1, "devices": [[], {}]},
    ],
)
def test_labels_of_another_shape_are_left_aside(value: Any) -> None:
    assert trace_of([alloc(BASE, 1)], memviz=value) == trace_of([alloc(BASE, 1)])


# A few references can name a text larger than any memory.
BOMB: list[Any] = []
for _ in range(60):
    BOMB = [BOMB, BOMB]
CYCLE: list[Any] = []
CYCLE.append(CYCLE)


@pytest.mark.parametrize(
    ("root", "reason"),
    [
        ({"state_dict": 1, 7: 2}, "a dict with the keys '<int>', 'state_dict'"),
        ([[]], "holds a list"),
        ({"segments": {}}, "'segments' is a dict, not a list"),
        ({"segments": [5]}, "A segment or annotation is an int, not a dict"),
        ({"segments": [], "device_traces": 5}, "'device_traces' is an int, not a list"),
        ({"device_traces": [[], alloc(BASE, 1)]}, "'device_traces' is a dict, not a list"),
        ({"device_traces": [[[]]]}, "An event is a list, not a dict"),
        ({"device_traces": [[]] * 5000}, "more than 512 devices"),
        ({"device_traces": [()] * 5000}, "more than 512 devices"),
        ({"segments": [segment(BASE, 512, [], device=i) for i in range(5000)]}, "more than 512 devices"),
        ({"host_traces": [5], "segments": []}, "not a dict"),
        ({"host_segments": [5], "segments": []}, "'address' is missing"),
    ],
)
def test_what_is_no_snapshot_is_refused(root: Any, reason: str) -> None:
    with pytest.raises(TraceError, match=reason):
        read(root)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"action": 5}, "'action' of an event is missing or not a text"),
        ({"action": None}, "'action' of an event is missing or not a text"),
        ({"addr": "x"}, "'addr' is not a whole number"),
        ({"addr": 1.5}, "'addr' is not a whole number"),
        ({"addr": 2**64}, "'addr' has more than 64 bits"),
        ({"size": -1}, "negative"),
        ({"size": 2**62}, "beyond any real memory"),
        ({"size": 2**63}, "more than 64 bits"),
        ({"size": None}, "'size' is not a whole number"),
        ({"stream": "0"}, "expected as stream"),
        ({"time_us": 2**70}, "more than 64 bits"),
        ({"pool_id": 5}, "pool's id was expected as two numbers"),
        ({"pool_id": (1, 2, 3)}, "pool's id was expected as two numbers"),
        ({"pool_id": ("a", 0)}, "expected as pool id"),
        ({"frames": 5}, "A stack was expected, found int"),
        ({"frames": {}}, "A stack was expected, found dict"),
        ({"frames": [5]}, "A frame was expected, found int"),
        ({"frames": CYCLE}, "A frame was expected, found list"),
        ({"frames": [{"name": 5}]}, "A text was expected"),
        ({"frames": [{"name": "f", "line": 2**64}]}, "'line' has more than 64 bits"),
        ({"stream": 2**64}, "'stream' has more than 64 bits"),
        ({"pool_id": (0, -(2**63) - 1)}, "'pool id' has more than 64 bits"),
        ({"frames": [{"name": "f", "line": "9"}]}, "expected as line"),
        ({"forward_frames": [None]}, "A frame was expected"),
        ({"compile_context": BOMB}, "A text was expected, found list"),
        ({"user_metadata": {"a": BOMB}}, "A text was expected, found dict"),
        ({"user_metadata": CYCLE}, "A text was expected"),
        ({"user_metadata": {(1, 2): 3}}, "A text was expected"),
    ],
)
def test_an_event_with_values_of_another_kind_is_refused(changed: dict[str, Any], reason: str) -> None:
    with pytest.raises(TraceError, match=reason):
        trace_of([{**EVENT, **changed}])


def test_a_high_address_beside_one_that_is_no_number_is_refused() -> None:
    """A crash that the fuzzer reported."""
    with pytest.raises(TraceError, match="'addr' is not a whole number"):
        trace_of([alloc(2**63, 1), alloc([[]], 1)])


def test_too_many_kinds_of_events_are_refused() -> None:
    with pytest.raises(TraceError, match="more than 191 unknown actions"):
        trace_of([event(f"action {i}", BASE, 1) for i in range(200)])


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"address": None}, "'address' is missing or not a whole number"),
        ({"address": 2**64}, "'address' has more than 64 bits"),
        ({"total_size": "2"}, "'total_size' is missing"),
        ({"total_size": -1}, "negative"),
        ({"total_size": 2**62}, "beyond any real memory"),
        ({"device": "cuda:0"}, "'device' is missing or not a whole number"),
        ({"device": True}, "'device' is missing or not a whole number"),
        ({"stream": None}, "expected as stream"),
        ({"segment_pool_id": 7}, "pool's id"),
        ({"frames": "f"}, "A stack was expected"),
        ({"blocks": {}}, "'blocks' is a dict, not a list"),
        ({"blocks": [[]]}, "A block is a list, not a dict"),
        ({"blocks": [block(BASE, -5)]}, "not a number of bytes"),
        ({"blocks": [block(BASE, 512, -5)]}, "not a number of bytes"),
        ({"blocks": [block(BASE, 2**80)]}, "more than 64 bits"),
        ({"blocks": [block(BASE, 2**62)]}, "blocks are beyond any real memory"),
        ({"blocks": [block(BASE, 512, 2**61), block(BASE, 512, 2**61)]}, "blocks are beyond any real memory"),
        ({"blocks": [block(BASE, 512, frames=[5])]}, "A frame was expected"),
        ({"blocks": [{"size": 512, "state": "active_allocated", "history": [{"real_size": "x"}]}]}, "number of bytes"),
    ],
)
def test_a_segment_with_values_of_another_kind_is_refused(changed: dict[str, Any], reason: str) -> None:
    with pytest.raises(TraceError, match=reason):
        read([{**segment(BASE, 512, [block(BASE, 512)]), **changed}])


@pytest.mark.parametrize("changed", [{"name": 5}, {"time_us": "now"}, {"device": None}])
def test_an_annotation_with_values_of_another_kind_is_refused(changed: dict[str, Any]) -> None:
    row = {"name": "step", "stage": "START", "device": 0, "time_us": 1, **changed}
    with pytest.raises(TraceError):
        trace_of([alloc(BASE, 1)], external_annotations=[row])


@pytest.mark.parametrize("state", [BOMB, CYCLE, None, 5])
def test_a_state_of_another_kind_is_unknown(state: Any) -> None:
    trace = read([segment(BASE, 512, [block(BASE, 512, 10, state=state)])])
    assert [note.code for note in trace.notes] == ["unknown_states"]


SOUND = {
    **snapshot(
        [EVENT, *free(BASE, 1000)], [segment(BASE, 2 * MiB, [block(BASE + 512, 512, 400, frames=[frame("f")])])]
    ),
    "external_annotations": [{"name": "step", "stage": "START", "device": 0, "time_us": 1}],
    "allocator_settings": {"max_split_size": -1, "roundup_power2_divisions": {"1": 0}},
    "host_traces": [[alloc(BASE, 5)]],
    "host_segments": [],
    "memviz": own(category="AAAA", module="AAAAAAAAAAAAAAAA", phase="AAAA"),
}
# By name, so that a failing case can be printed.
HOSTILE: dict[str, Any] = {
    "bomb": BOMB,
    "bomb in a dict": {"a": BOMB},
    "cycle": CYCLE,
    "tuple as key": {(1, 2): 3},
    "number as key": {5: 5},
    "lone surrogate": "\ud800",
    "nan": float("nan"),
    "nested": [[]],
    **{repr(each): each for each in (None, True, -1, 2**63, 2**64, 2**400, 1.5, "", b"x", (), [], {})},
}


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of all values inside, as the keys that lead to them."""
    inner = value.items() if type(value) is dict else enumerate(value) if type(value) is list else ()
    return [found for key, each in inner for found in [(*path, key), *places(each, (*path, key))]]


@settings(max_examples=100)
@given(st.sampled_from(places(SOUND)), st.sampled_from(sorted(HOSTILE)))
def test_any_one_value_replaced_gives_a_trace_or_a_refusal(path: tuple[Any, ...], name: str) -> None:
    root: Any = deepcopy(SOUND)
    inner = root
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = HOSTILE[name]
    try:
        trace = read(root)
    except TraceError as error:
        assert len(str(error)) < 400
    else:
        assert all(np.isfinite(trace.stacks.offsets)) and trace.event_count <= 4
