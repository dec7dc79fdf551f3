"""Every layout of a snapshot that PyTorch has written, as a small dict."""

import gzip
import io
import json
import pickle
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memviz.analysis.timeline import timeline
from memviz.errors import TraceError
from memviz.trace.limits import Budget, Limits, Unwanted
from memviz.trace.load import load_trace, read_trace
from memviz.trace.model import NO_STACK, Action, Category, Phase, Stage, State, Trace, address_text, driver_free
from tests.facts import missing
from tests.traces import MiB, alloc, block, event, frame, free, read, segment, snapshot, trace_of

BASE = 0x7000_0000_0000


def stack(trace: Trace, number: int) -> list[tuple[str, str, int]]:
    frames = trace.stacks.frames
    found = trace.stacks.of(number)
    return [(trace.strings[frames.name[i]], trace.strings[frames.filename[i]], int(frames.line[i])) for i in found]


def codes(trace: Trace) -> list[str]:
    return [note.code for note in trace.notes]


# One complete event of the newest layout.
NEWEST = alloc(
    BASE,
    1000,
    stream=7,
    time_us=5,
    frames=[frame("forward", "model.py", 3), frame("main", "train.py", 9)],
    forward_frames=['  File "model.py", line 3, in forward\n'],
    compile_context="Torch-Compiled Region: 0/0",
    user_metadata="step 1",
    pool_id=(0, 3),
)


def test_an_event_of_the_newest_layout_keeps_all_it_says() -> None:
    trace = trace_of([NEWEST])
    events = trace.devices[0].events
    assert (events.action[0], events.address[0], events.size[0], events.time_us[0]) == (Action.ALLOC, BASE, 1000, 5)
    assert (trace.streams[events.stream[0]], trace.pools[events.pool[0]]) == (7, (0, 3))
    assert trace.strings[events.context[0]] == "Torch-Compiled Region: 0/0"
    assert trace.strings[events.metadata[0]] == "step 1"
    assert stack(trace, events.stack[0]) == [("forward", "model.py", 3), ("main", "train.py", 9)]
    assert stack(trace, events.forward_stack[0]) == [('  File "model.py", line 3, in forward\n', "", 0)]


def test_an_event_of_torch_2_0_has_no_time_pool_or_stack() -> None:
    events = trace_of([alloc(BASE, 1000)]).devices[0].events
    assert (events.time_us[0], events.pool[0], events.stack[0], events.context[0]) == (0, 0, NO_STACK, 0)


def test_blocks_of_torch_2_0_are_placed_by_their_order_and_take_stacks_from_their_history() -> None:
    newest, older = frame("newest"), frame("older")
    history = [{"addr": BASE, "real_size": 900, "frames": [newest]}, {"addr": BASE, "real_size": 7, "frames": [older]}]
    blocks = [
        {"size": 1024, "state": "active_allocated", "history": history},
        {"size": 512, "state": "inactive"},
        {"size": 512, "state": "active_allocated", "history": [{"addr": BASE + 1536, "real_size": 5}]},
    ]
    row = {"device": 0, "address": BASE, "total_size": 2048, "stream": 0, "segment_type": "small", "blocks": blocks}
    trace = read({"segments": [row], "device_traces": []})
    found = trace.devices[0].blocks
    assert (found.address - BASE).tolist() == [0, 1024, 1536]
    assert found.requested.tolist() == [900, 0, 5]
    assert [stack(trace, number) for number in found.stack] == [[("newest", "train.py", 1)], [], []]


def test_a_bare_list_of_segments_is_a_state_without_history() -> None:
    device = read([segment(BASE, 2 * MiB, [block(BASE, 1024, 1000)])]).devices[0]
    assert (len(device.events), device.blocks.requested.tolist()) == (0, [1000, 0])


@pytest.mark.parametrize("address", [2**63, 2**64 - 512])
def test_addresses_of_64_bits_are_kept(address: int) -> None:
    device = trace_of([alloc(address, 10)], [segment(address, 512, [block(address, 512, 10)])]).devices[0]
    for column in (device.events.address, device.segments.address, device.blocks.address):
        assert address_text(int(column[0])) == hex(address)


def test_segments_say_what_they_are() -> None:
    row = segment(BASE, 20 * MiB, [], stream=7, segment_pool_id=[1, 0], is_expandable=True, frames=[frame("grow")])
    trace = read([row])
    found = trace.devices[0].segments
    assert (trace.streams[found.stream[0]], trace.pools[found.pool[0]]) == (7, (1, 0))
    assert (found.is_large.tolist(), found.is_expandable.tolist()) == ([True], [True])
    assert stack(trace, found.stack[0]) == [("grow", "train.py", 1)]


@pytest.mark.parametrize("name", ["active_pending_free", "active_awaiting_free"])
def test_both_names_of_a_pending_free_are_known(name: str) -> None:
    trace = read([segment(BASE, 2 * MiB, [block(BASE, 1024, 1000, state=name)])])
    blocks = trace.devices[0].blocks
    assert (blocks.state[0], blocks.requested[0], trace.notes) == (State[name.upper()], 1000, ())


def test_devices_are_apart() -> None:
    root = snapshot([alloc(BASE, 1)], [segment(BASE, 512, [], device=2)])
    root["device_traces"] += [[], [], [alloc(BASE, 3), *free(BASE, 3)]]
    trace = read(root)
    assert [(device.device, len(device.events), len(device.segments)) for device in trace.devices] == [
        (0, 1, 0),
        (2, 0, 1),
        (3, 3, 0),
    ]


def test_a_flat_list_of_events_is_the_first_devices() -> None:
    assert len(read({"device_traces": [alloc(BASE, 1), alloc(BASE + 512, 2)]}).devices[0].events) == 2


def test_pinned_memory_is_a_device_of_its_own() -> None:
    more = {"host_segments": [segment(BASE, 4096, [])], "host_traces": [[alloc(BASE, 9)], [alloc(2 * BASE, 9)]]}
    trace = trace_of([alloc(BASE, 1)], **more)
    assert [(device.name, len(device.events), len(device.segments)) for device in trace.devices] == [
        ("0", 1, 0),
        ("host0", 2, 1),
    ]


def test_an_out_of_memory_event_has_free_bytes_in_place_of_an_address() -> None:
    oom = {"action": "oom", "device_free": 3 * MiB, "size": 900 * MiB, "stream": 0}
    events = trace_of([oom]).devices[0].events
    assert (events.action[0], events.address[0], events.size[0]) == (Action.OOM, 3 * MiB, 900 * MiB)


def test_annotations_are_the_devices_own_and_in_order_of_time() -> None:
    rows = [
        {"name": "b", "stage": "END", "device": 0, "time_us": 9},
        {"name": "b", "stage": "START", "device": 0, "time_us": 4},
        {"name": "other", "stage": "START", "device": 1, "time_us": 1},
    ]
    trace = trace_of([alloc(BASE, 1)], external_annotations=rows)
    found = trace.devices[0].annotations
    assert ([trace.strings[name] for name in found.name], found.time_us.tolist()) == (["b", "b"], [4, 9])
    assert found.stage.tolist() == [Stage.START, Stage.END]


def test_settings_are_kept_as_far_as_they_are_plain() -> None:
    given = {"a": 1, "b": {"1": 4, "x": [1]}, "c": [1], "d": {"deep": {"er": 1}}, 5: 1, "e": float("nan"), "f": 0.5}
    assert trace_of([alloc(BASE, 1)], allocator_settings=given).settings == {"a": 1, "b": {"1": 4}, "d": {}, "f": 0.5}


def test_categories_of_a_converted_profile_become_labels() -> None:
    row = segment(BASE, 1024, [block(BASE, 512, 10, category="parameter"), block(BASE + 512, 512, 10)])
    device = trace_of([alloc(BASE, 10, category="autograd_detail"), alloc(1, 1, category="?")], [row]).devices[0]
    assert device.event_labels is not None and device.block_labels is not None
    assert device.event_labels.category.tolist() == [Category.ACTIVATION, Category.UNKNOWN]
    assert device.block_labels.category.tolist() == [Category.PARAMETER, Category.UNKNOWN]


def test_attached_dicts_become_the_json_that_torch_makes_of_them() -> None:
    trace = trace_of([alloc(BASE, 1, user_metadata={"step": 1, "layer": "a"})])
    assert trace.strings[trace.devices[0].events.metadata[0]] == '{"step":1,"layer":"a"}'


def test_what_is_not_known_is_noted_and_left_aside() -> None:
    row = segment(BASE, 512, [block(BASE, 512, 10, "resting")], registration_counter=3)
    more = {"new_part": 1, 5: 2}
    trace = read({**snapshot([alloc(BASE, 1, colour="red"), event("shrink", BASE, 7)], [row]), **more})
    facts = {
        "unknown_keys": ("'<int>', 'new_part'",),
        "unknown_event_keys": ("'colour'",),
        "unknown_actions": ("'shrink'", "without effect"),
        "unknown_states": ("'resting'", "as free"),
    }
    assert [note.code for note in trace.notes] == [*facts]
    assert [missing(note.text, *facts[note.code]) for note in trace.notes] == [[]] * 4
    assert trace.action_name(int(trace.devices[0].events.action[1])) == "shrink"
    assert trace.devices[0].blocks.state.tolist() == [State.INACTIVE]


def test_blocks_that_do_not_fill_their_segment_are_noted() -> None:
    row = {**segment(BASE, 2 * MiB, []), "blocks": [block(BASE, 1024)]}
    assert codes(read([row])) == ["untiled_segments"]


def test_our_own_labels_come_back() -> None:
    labels = {"category": "AQA=", "module": "AQAAAAAAAAA=", "phase": "AQI="}
    own = {
        "version": 1,
        "about": {"origin": "predicted", "on": "H200", "facts": {"model": "m", "n": 3}},
        "modules": ["", "layers.0"],
        "devices": [{"kind": "gpu", "device": 0, "events": labels}],
    }
    trace = trace_of([alloc(BASE, 1), alloc(BASE + 512, 1)], memviz=own)
    found = trace.devices[0].event_labels
    assert found is not None
    assert found.category.tolist() == [Category.PARAMETER, Category.UNKNOWN]
    assert [trace.strings[module] for module in found.module] == ["layers.0", ""]
    assert found.phase.tolist() == [Phase.FORWARD, Phase.BACKWARD]
    assert (trace.about.label, trace.about.facts) == ("predicted for H200", {"model": "m"})


# -- torch's placeholders for missing values


@pytest.mark.parametrize("line", [2**64 - 1, 2**32 - 1, -1, 2**40])
def test_a_line_that_is_none_is_read_as_none(line: int) -> None:
    trace = trace_of([alloc(BASE, 1, frames=[frame("init_gpu_context", "a.py", line)])])
    assert trace.stacks.frames.line.tolist() == [0]


@pytest.mark.parametrize("stream", [2**64 - 1, -1, 1, 2])
def test_stream_handles_are_read_signed_and_unsigned(stream: int) -> None:
    assert trace_of([alloc(BASE, 1, stream=stream)]).streams == (0, stream)


@pytest.mark.parametrize("stale", [2**64 - 1, -1, None])
def test_what_an_inactive_block_says_of_its_request_is_stale_and_not_read(stale: Any) -> None:
    blocks = [{**block(BASE, 512, 5), "state": "inactive", "requested_size": stale}]
    assert read([segment(BASE, 512, blocks)]).devices[0].blocks.requested.tolist() == [0]


# -- texts and stacks longer than anybody reads


def test_a_long_text_is_cut_in_its_middle_and_stays_itself() -> None:
    long, other = "a" * 5000 + "end", "b" + "a" * 4999 + "end"
    trace = trace_of([alloc(BASE + i, 1, user_metadata=each) for i, each in enumerate((long, other, long))])
    texts = [trace.strings[code] for code in trace.devices[0].events.metadata]
    assert texts[0] == texts[2] != texts[1]
    assert all(len(text) == 4096 and text.endswith("end") and "cut from 5,003 characters" in text for text in texts)
    assert [note.code for note in trace.notes] == ["cut_texts"]


def test_a_deep_stack_keeps_both_its_ends() -> None:
    frames = [frame(f"f{i}") for i in range(5000)]
    trace = trace_of([alloc(BASE, 1, frames=frames)])
    names = [trace.strings[trace.stacks.frames.name[each]] for each in trace.stacks.of(0)]
    assert len(names) == 2000 and names[0] == "f0" and names[-1] == "f4999"
    assert names[999:1002] == ["f999", "… 3,001 frames left out …", "f4001"]
    assert [note.code for note in trace.notes] == ["cut_stacks"]


def test_halves_of_characters_become_whole_ones() -> None:
    trace = trace_of([alloc(BASE, 1, user_metadata="a\ud800", frames=[frame("\ud83d\ude00")])])
    assert trace.strings[trace.devices[0].events.metadata[0]] == "a\ufffd"
    assert "\U0001f600" in trace.strings


@pytest.mark.parametrize(("said", "kept"), [(2**64 - 1, None), (2**63, None), (-1, None), (5, 5), (0, 0)])
def test_what_no_device_can_have_free_is_not_known(said: int, kept: int | None) -> None:
    trace = trace_of([{"action": "oom", "device_free": said, "size": 512, "stream": 0}])
    assert driver_free(trace.devices[0].events, 0) == kept


def test_snapshots_of_xpu_and_npu_are_read(tmp_path: Path) -> None:
    """XPU writes `PYTORCH_ALLOC_CONF` into its settings and streams as pointers; torch_npu writes no times."""
    common = {"size": 1000, "addr": 0x2000, "stream": 0x55D0C8A01230}
    freed = {**common, "addr": 0x4000}
    events = [
        {"action": "segment_alloc", "addr": 0x2000, "size": 2 << 20, "stream": common["stream"]},
        {"action": "alloc", **common, "frames": [frame("forward")]},
        {"action": "alloc", **freed, "frames": [frame("forward")]},
        {"action": "free_requested", **freed},
        {"action": "free_completed", **freed},
    ]
    blocks = [
        {"address": 0x2000, "size": 1024, "requested_size": 1000, "state": "active_pending_free", "frames": []},
        {"address": 0x2400, "size": (2 << 20) - 1024, "requested_size": 0, "state": "inactive", "frames": []},
    ]
    row = {"device": 0, "address": 0x2000, "total_size": 2 << 20, "stream": common["stream"], "segment_type": "small"}
    npu = {"segments": [{**row, "is_expandable": False, "blocks": blocks}], "device_traces": [events]}
    timed = [{**one, "time_us": number} for number, one in enumerate(events)]
    settings = {"PYTORCH_ALLOC_CONF": "", "expandable_segments": False}
    xpu = {**npu, "device_traces": [timed], "allocator_settings": settings}
    for name, root in (("npu", npu), ("xpu", xpu)):
        path = tmp_path / f"{name}.pickle"
        path.write_bytes(pickle.dumps(root))
        device = load_trace(path).devices[0]
        assert timeline(device).peak_bytes == 2000
        assert timeline(device).reserved_peak_bytes == 2 << 20


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
        [{}],
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
        trace_of([{**NEWEST, **changed}])


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
        [NEWEST, *free(BASE, 1000)], [segment(BASE, 2 * MiB, [block(BASE + 512, 512, 400, frames=[frame("f")])])]
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


def many(events: int = 60_000, **more: Any) -> dict[str, Any]:
    """Written so that it takes many windows: no stack is shared."""
    rows = [alloc(512 * i, 512, frames=[frame(f"f{i}", "x" * 200)], **more) for i in range(events)]
    return snapshot(rows)


@pytest.mark.slow
@pytest.mark.parametrize(
    "written",
    [
        lambda: pickle.dumps(many()),
        lambda: gzip.compress(pickle.dumps(many(category="input")), 1),
        lambda: json.dumps(many()).encode(),
    ],
    ids=["pickle", "gzip, event by event", "JSON"],
)
def test_a_reading_stops_soon_after_its_visitor_has_gone(written: Callable[[], bytes]) -> None:
    raw, asked = written(), 0

    def is_wanted() -> bool:
        nonlocal asked
        asked += 1
        return asked < 3

    with pytest.raises(Unwanted, match="cancelled"):
        read_trace(io.BytesIO(raw), "a.pickle", len(raw), is_wanted=is_wanted)
    assert asked == 3


def test_one_that_stays_gets_the_same_trace() -> None:
    raw = pickle.dumps(many(100))
    wanted = read_trace(io.BytesIO(raw), "a.pickle", len(raw), is_wanted=lambda: True)
    assert wanted == read_trace(io.BytesIO(raw), "a.pickle", len(raw))


def test_what_a_file_may_take_grows_with_its_size() -> None:
    small, same, large, huge = (Limits().for_size(size) for size in (330, 8 * MiB, 20 * MiB, 4096 * MiB))
    assert small.memory_bytes == same.memory_bytes and small.events < same.events
    assert small.memory_bytes == 800 * MiB
    assert large.memory_bytes == 2000 * MiB and large.events == 500_000 + 10 * MiB
    assert huge == Limits()


def test_a_small_file_may_take_no_more_memory_than_its_size_allows() -> None:
    with pytest.raises(TraceError, match="limit for a file of its size.*MEMVIZ_MAX_GROWTH, or unpack it first"):
        Budget(Limits(), 330).charge(900 * MiB)
    Budget(Limits(), 330 * MiB).charge(900 * MiB)
    Budget(Limits(growth=1000), 330).charge(900 * MiB)


def test_a_small_file_may_not_keep_the_machine_busy() -> None:
    assert Limits().busy_seconds(1000) == pytest.approx(5, abs=0.01)
    assert Limits().busy_seconds(100 * MiB) == pytest.approx(105)
    with pytest.raises(TraceError, match="processor for more than .* MEMVIZ_MAX_GROWTH"):
        budget = Budget(Limits(growth=0), 330)
        while True:
            budget.check()
