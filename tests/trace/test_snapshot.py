"""Every layout of a snapshot that PyTorch has written, as a small dict."""

import pickle
from pathlib import Path
from typing import Any

import pytest

from memviz.analysis.timeline import timeline
from memviz.trace.load import load_trace
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
