"""Events decoded in long runs are the events that reading one by one gives."""

import base64
import io
import pickle
import random
import zlib
from collections.abc import Callable, Container, Iterable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memviz.errors import TraceError
from memviz.trace.intern import Interner
from memviz.trace.load import load_trace
from memviz.trace.model import About, AnnotationRows, BlockRows, Events, Trace
from memviz.trace.snapshot import read_snapshot
from memviz.trace.unpickle import RefersToRow, unpickle
from memviz.trace.unpickle.rows import places_in
from tests.real import each_real_file, requires_real
from tests.trace.cpp_pickler import cpp_dumps
from tests.traces import block, segment, snapshot

ABOUT = About("measured")


def read(raw: bytes, *, runs: bool) -> tuple[Any, Interner]:
    interner = Interner()
    return unpickle(io.BytesIO(raw), interner, runs=runs), interner


def both(raw: bytes) -> tuple[Trace, Trace]:
    (with_runs, interner), (without, other) = (read(raw, runs=runs) for runs in (True, False))
    return read_snapshot(with_runs, ABOUT, interner), read_snapshot(without, ABOUT, other)


def described(trace: Trace) -> list[list[tuple[Any, ...]]]:
    """Every field of every event in words, so that two traces with other numbers for the same texts are equal."""
    stack_of = cache(partial(_stack, trace))
    return [_events(trace, device.events, stack_of) for device in trace.devices]


def reads_alike(raw: bytes) -> tuple[Trace, Trace]:
    with_runs, without = both(raw)
    assert described(with_runs) == described(without)
    return with_runs, without


def described_end(trace: Trace) -> list[list[tuple[Any, ...]]]:
    """The same of every block and annotation."""
    stack_of = cache(partial(_stack, trace))
    found = []
    for device in trace.devices:
        blocks, ranges = device.blocks, device.annotations
        columns = (blocks.segment, blocks.address, blocks.size, blocks.requested, blocks.state)
        stacks = map(stack_of, blocks.stack.tolist())
        found.append(list(zip(*(column.tolist() for column in columns), stacks, strict=True)))
        names = map(trace.strings.__getitem__, ranges.name.tolist())
        found.append(list(zip(names, ranges.stage.tolist(), ranges.time_us.tolist(), strict=True)))
    return found


def _events(trace: Trace, events: Events, stack_of: Callable[[int], Any]) -> list[tuple[Any, ...]]:
    columns = (
        map(trace.action_name, events.action.tolist()),
        events.address.tolist(),
        events.size.tolist(),
        map(trace.streams.__getitem__, events.stream.tolist()),
        events.time_us.tolist(),
        map(stack_of, events.stack.tolist()),
        map(stack_of, events.forward_stack.tolist()),
        map(trace.strings.__getitem__, events.context.tolist()),
        map(trace.strings.__getitem__, events.metadata.tolist()),
        map(trace.pools.__getitem__, events.pool.tolist()),
    )
    return list(zip(*columns, strict=True))


def _stack(trace: Trace, number: int) -> tuple[tuple[str, str, int], ...]:
    frames = trace.stacks.frames
    return tuple(
        (trace.strings[frames.name[f]], trace.strings[frames.filename[f]], int(frames.line[f]))
        for f in trace.stacks.of(number)
    )


def run_lengths(raw: bytes) -> list[int]:
    root, _ = read(raw, runs=True)
    return [len(each) for each in root["device_traces"][0] if type(each) is Events]


integers = st.sampled_from(
    [0, 1, 255, 256, 65535, 65536, 2**31 - 1, 2**31, -1, -(2**31), 2**40, 2**47 + 5, 2**55, 2**62, -(2**62)]
)
FRAMES = [{"name": f"f{i}", "filename": "e" * i + "u", "line": i} for i in range(12)]
STACKS = [FRAMES[i : i + n] for i in range(8) for n in (0, 1, 2, 5)]
FORWARD = [["MulBackward0", "f1"], [], ["f2"], [*FRAMES[:2], "f2"]]
"""torch writes these frames as texts."""
TEXTS = ["", "N/A", "eu", "x" * 300, "Torch-Compiled Region: 0/0", "€uro"]


@st.composite
def histories(draw: st.DrawFn) -> list[dict[str, Any]]:
    known = ["time_us", "compile_context", "user_metadata", "pool_id", "frames"]
    keys = draw(st.sets(st.sampled_from(known)))
    of_tomorrow = draw(st.sampled_from([[], [], [1, 2**40], TEXTS, [None, 3, "x", True, 1.5]]))
    left_out = draw(st.sets(st.sampled_from([*known, "forward_frames"])))
    has_forward = draw(st.booleans())
    shared = draw(st.booleans())
    seed = draw(st.integers(0, 2**32))
    rnd = random.Random(seed)
    numbers = draw(st.lists(integers, min_size=3, max_size=6))
    events = []
    for i in range(draw(st.integers(20, 300))):
        event: dict[str, Any] = {
            "action": rnd.choice(
                ["alloc", "free_requested", "free_completed", "segment_alloc", "segment_unmap", "new"]
            ),
            "addr": rnd.choice(numbers) if rnd.random() < 0.9 else 2**63 + i,
            "size": abs(rnd.choice(numbers)) % 2**50,
            "stream": rnd.choice([0, 0, 0, 7, 2**40]),
        }
        if "time_us" in keys:
            event["time_us"] = 1_777_000_000_000_000 + i
        if "compile_context" in keys:
            event["compile_context"] = rnd.choice(TEXTS)
        if "user_metadata" in keys:
            event["user_metadata"] = "".join(rnd.choice(TEXTS))
        if "pool_id" in keys:
            event["pool_id"] = rnd.choice([(0, 0), (0, 1), (3, 300), (2**40, 0)])
        if "frames" in keys:
            stack = rnd.choice(STACKS)
            event["frames"] = stack if shared else list(stack)
        if has_forward:
            stack = rnd.choice(FORWARD)
            event["forward_frames"] = stack if shared else list(stack)
        if of_tomorrow:
            event["tomorrow"] = rnd.choice(of_tomorrow)
        if event["action"].startswith("free"):
            event = {key: value for key, value in event.items() if key not in left_out}
        events.append(event)
        if rnd.random() < 0.01:
            events.append({"action": "oom", "device_free": 5, "size": 2**33, "stream": 0, "frames": list(STACKS[3])})
    return events


def python_dumps(value: Any) -> bytes:
    """Pickle with the pickler that is written in Python."""
    out = io.BytesIO()
    pickle._Pickler(out, 4).dump(value)  # type: ignore[attr-defined]
    return out.getvalue()


def protocols(numbers: Iterable[int], slow: Container[int] = ()) -> list[Any]:
    marks = {True: pytest.mark.slow, False: ()}
    return [
        pytest.param(partial(pickle.dumps, protocol=each), id=f"{each}", marks=marks[each in slow]) for each in numbers
    ]


@pytest.mark.parametrize("write", [*protocols(range(6), slow=(0, 1, 3, 5)), python_dumps])
@given(history=histories())
def test_runs_give_what_reading_one_by_one_gives(history: list[dict[str, Any]], write: Callable[[Any], bytes]) -> None:
    reads_alike(write(snapshot(history)))


@given(history=histories())
def test_the_pickler_inside_pytorch_gives_the_same(history: list[dict[str, Any]]) -> None:
    small = [each for each in history if each.get("addr", 0) < 2**63]
    raw = cpp_dumps(snapshot(small))
    assert pickle.loads(raw) == snapshot(small)
    reads_alike(raw)


@st.composite
def ends(draw: st.DrawFn) -> dict[str, Any]:
    """Segments with many blocks, and annotations; their keys are shared, or created per row as torch does."""
    rnd = random.Random(draw(st.integers(0, 2**32)))
    numbers = draw(st.lists(integers, min_size=3, max_size=6))
    keys = draw(st.sets(st.sampled_from(["requested_size", "frames"])))
    anew = draw(st.booleans())
    shared = draw(st.booleans())
    segments = []
    for i in range(draw(st.integers(1, 5))):
        blocks = [_block(rnd, keys, numbers, shared) for _ in range(draw(st.integers(0, 60)))]
        segments.append({"device": 0, "address": i << 30, "total_size": 1 << 20, "stream": 0, "blocks": blocks})
    rows = [_annotation(rnd, anew, numbers) for _ in range(draw(st.integers(0, 100)))]
    events = plain_history(draw(st.sampled_from([0, 1, 40])))
    return snapshot(events, segments, external_annotations=rows, late=[key for row in rows for key in row])


def _block(rnd: random.Random, keys: set[str], numbers: list[int], shared: bool) -> dict[str, Any]:
    block: dict[str, Any] = {"address": rnd.choice(numbers), "size": abs(rnd.choice(numbers)) % 2**50}
    if "requested_size" in keys:
        block["requested_size"] = abs(rnd.choice(numbers)) % 2**50
    block["state"] = rnd.choice(["active_allocated", "inactive", "active_pending_free", "odd"])
    if "frames" in keys:
        stack = rnd.choice(STACKS)
        block["frames"] = stack if shared else list(stack)
    if rnd.random() < 0.01:
        block["more"] = 1
    return block


def _annotation(rnd: random.Random, anew: bool, numbers: list[int]) -> dict[str, Any]:
    def key(text: str) -> str:
        return "".join(list(text)) if anew else text

    row = {key("stage"): key(rnd.choice(["START", "END"])), key("name"): "".join(rnd.choice(TEXTS))}
    return {**row, "device": rnd.choice([0, 0, 0, 1, -1]), "time_us": rnd.choice(numbers)}


@pytest.mark.parametrize("write", [*protocols((1, 2, 3, 4), slow=(1, 3)), cpp_dumps])
@given(end=ends())
def test_rows_of_blocks_and_annotations_are_what_reading_one_by_one_gives(
    end: dict[str, Any], write: Callable[[Any], bytes]
) -> None:
    with_runs, without = reads_alike(write(end))
    assert described_end(with_runs) == described_end(without)
    assert with_runs.notes == without.notes


@pytest.mark.parametrize("anew", [False, True])
def test_long_lists_of_annotations_and_blocks_are_nearly_all_runs(anew: bool) -> None:
    rnd = random.Random(5)
    rows = [_annotation(rnd, anew, [1, 2**50]) for _ in range(5000)]
    blocks = [_block(rnd, {"frames", "requested_size"}, [1, 2**50], True) for _ in range(200)]
    kept = [row for row in blocks if "more" not in row]
    segments = [
        {"device": 0, "address": i, "total_size": 1, "blocks": [{**row, "frames": FRAMES[:3]} for row in kept]}
        for i in range(3)
    ]
    raw = pickle.dumps(snapshot([], segments, external_annotations=rows))
    root, _ = read(raw, runs=True)
    assert sum(len(each) for each in root["external_annotations"] if type(each) is AnnotationRows) > 4_900
    for each in root["segments"]:
        assert sum(len(rows) for rows in each["blocks"] if type(rows) is BlockRows) > 180


def test_a_key_first_written_out_in_a_row_of_annotations_can_be_named_after_it() -> None:
    rnd = random.Random(5)
    rows = [_annotation(rnd, True, [1, 2**50]) for _ in range(100)]
    root, _ = read(pickle.dumps(snapshot([], [], external_annotations=rows, late=list(rows[70]))), runs=True)
    assert root["late"] == ["stage", "name", "device", "time_us"]


WRITTEN_BY_PYTORCH = (
    b"c-m!9%TmHH6irJDh=PC$zTI}^sGnhneKt&|wpWs|wA?0P;S8fI7XGt?HxZmsmpLcrb>IC}#M_K91+zJnS|OW81hoiC^SlP7(3`Np0gI|"
    b"C5}BhPv)EhnCP7a{mAxozI8k7I<SSq>VLlJ-OQ#wz<b7+GX}N?XEl5IWj!ozAT&HtT*!poO>5XmfTkZk(99GB@uoL@c6^Si%kNct%dj<"
    b"~xy9Rs21doe>$3*A`$?`i84+VJx_Ko}Tx!G()C<qjN1H#4bEbnkYmdpsU92z_VJmy^@a#+d?5?!YmH9eU|u4{9<sVZ^g#=2!Vc7^Tj@b"
    b"tqLVeE}DVQ<FPluE{D6glEOHy$9#s`;V-dy#WN67RRf)*gwmW&D3;H2lKxPTBaQ1i(u^+%-#eRVNCxmgP+0)haT0ZSdyy3#ki)ng"
)
"""A small snapshot as the C++ `Pickler` of torch 2.13 wrote it, held as `_memory_snapshot_pickled` holds it. Packed."""


def test_the_pickler_of_these_tests_writes_as_the_one_inside_pytorch_does() -> None:
    raw = zlib.decompress(base64.b85decode(WRITTEN_BY_PYTORCH))
    assert cpp_dumps(pickle.loads(raw)) == raw


def without_frames_of_frees(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Change the history to torch's with context="alloc": frees have no frames."""
    for event in history[1::2]:
        event["action"] = "free_completed"
        del event["frames"]
    return history


@pytest.mark.parametrize("write", [pickle.dumps, partial(pickle.dumps, protocol=2), cpp_dumps])
def test_rows_of_which_some_leave_out_their_frames_are_runs(write: Callable[[Any], bytes]) -> None:
    raw = write(snapshot(without_frames_of_frees(plain_history(5_000))))
    # The first 256 objects are numbered in one byte.
    assert sum(run_lengths(raw)) > 4_500
    reads_alike(raw)


def test_rows_of_which_some_have_frames_of_their_forward_pass_are_runs() -> None:
    history = plain_history(5_000)
    for event in history[1::3]:
        event["forward_frames"] = FORWARD[0]
    raw = pickle.dumps(snapshot(history))
    assert sum(run_lengths(raw)) > 4_900
    reads_alike(raw)


@pytest.mark.parametrize("value", [7, "a thread's name"])
def test_a_key_that_nobody_knows_yet_slows_nothing_down_and_is_told(value: Any) -> None:
    raw = pickle.dumps(snapshot(plain_history(5_000, thread=value)))
    assert sum(run_lengths(raw)) > 4_900
    notes = [{note.code: note.text for note in trace.notes} for trace in both(raw)]
    assert notes[0] == notes[1]
    assert "'thread'" in str(notes[0])


def plain_history(count: int, **more: Any) -> list[dict[str, Any]]:
    stacks = [list(FRAMES), FRAMES[3:], [FRAMES[1]]]
    return [
        {"action": "alloc", "addr": 512 * i, "size": 512, "stream": 0, "time_us": i, **more, "frames": stacks[i % 3]}
        for i in range(count)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("write", [*protocols((2, 3, 4, 5)), cpp_dumps])
def test_long_histories_are_nearly_all_runs(write: Callable[[Any], bytes]) -> None:
    lengths = run_lengths(write(snapshot(plain_history(30_000))))
    # Explicit memos number the first 256 objects in one byte, later ones in four; runs need the latter.
    assert sum(lengths) > 29_700
    assert len(lengths) < 12


def test_lists_of_frames_that_are_not_shared_are_runs_too() -> None:
    events = [{**each, "frames": list(each["frames"])} for each in plain_history(30_000)]
    assert sum(run_lengths(pickle.dumps(snapshot(events)))) > 29_900


def test_a_file_that_names_an_event_twice_is_read_one_by_one(tmp_path: Path) -> None:
    events = plain_history(1000)
    events.append(events[500])
    raw = pickle.dumps(snapshot(events))
    with pytest.raises(RefersToRow):
        read(raw, runs=True)
    path = tmp_path / "twice.pickle"
    path.write_bytes(raw)
    loaded = load_trace(path)
    assert len(loaded.devices[0].events) == 1001
    assert loaded.devices[0].events.address[1000] == 512 * 500


def test_texts_of_a_run_can_be_named_after_it() -> None:
    text = "seen inside a run first"
    events = plain_history(200)
    for event in events[100:]:
        event["user_metadata"] = text
    root, _ = read(pickle.dumps({**snapshot(events), "late": text}), runs=True)
    assert root["late"] == text


def test_stacks_of_a_run_can_be_named_by_a_block_after_it() -> None:
    events = [{**each, "frames": list(each["frames"])} for each in plain_history(200)]
    row = segment(0, 512, [block(0, 512, frames=events[150]["frames"])])
    raw = pickle.dumps({"device_traces": [events], "segments": [row]})
    with_runs, _ = reads_alike(raw)
    assert with_runs.devices[0].blocks.stack[0] == with_runs.devices[0].events.stack[150]


def test_the_memo_of_an_explicit_pickle_cannot_be_made_to_explode() -> None:
    raw = bytearray(pickle.dumps(snapshot(plain_history(2000)), 2))
    place = raw.rindex(b"r", 0, len(raw) - 200)
    raw[place + 1 : place + 5] = b"\xff\xff\xff\x7f"
    try:
        read(bytes(raw), runs=True)
    except TraceError as error:
        assert "numbers its objects" in str(error) or "damaged" in str(error)


@requires_real
@each_real_file
def test_real_files_give_the_same_with_and_without_runs(path: Path) -> None:
    with_runs, without = reads_alike(path.read_bytes())
    assert described_end(with_runs) == described_end(without)


def test_an_address_of_an_event_that_found_no_memory_is_no_free_memory() -> None:
    rows = [{"action": "oom" if i % 3 else "alloc", "addr": 512 * i, "size": 512, "stream": 0} for i in range(60)]
    reads_alike(pickle.dumps(snapshot(rows)))


# -- lists of references, as bytes of a pickle

# 104 and 106 are the operations themselves.
places = st.integers(0, 255) | st.sampled_from([104, 106, 0x6A68, 0x686A686A, 2**32 - 1]) | st.integers(0, 2**32 - 1)


def reference(place: int, *, is_long: bool) -> bytes:
    return b"j" + place.to_bytes(4, "little") if is_long or place > 255 else b"h" + bytes([place])


@given(st.lists(st.tuples(places, st.booleans())), st.sampled_from([(b"(", b"e"), (b"", b"e"), (b"", b"")]))
def test_every_place_is_found_in_its_order(wanted: list[tuple[int, bool]], around: tuple[bytes, bytes]) -> None:
    row = b"".join(reference(place, is_long=is_long) for place, is_long in wanted)
    assert places_in(around[0] + row + around[1]).tolist() == [place for place, _ in wanted]
