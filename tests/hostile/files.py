"""Small files, each built in a few lines, that would exhaust the machine when read naively."""

import gzip
import json
import pickle
import random
import struct
from collections.abc import Callable
from typing import Any

from tests.traces import alloc, block, event, frame, free, segment, snapshot

BASE = 0x7000_0000_0000
Make = Callable[[], bytes]
REFUSED: dict[str, Make] = {}
"""Files that must be refused with a message."""
READ: dict[str, Make] = {}
"""Odd but valid recordings: every command gives its answer."""


def refused(make: Make) -> Make:
    REFUSED[make.__name__] = make
    return make


def read(make: Make) -> Make:
    READ[make.__name__] = make
    return make


def packed(root: Any, protocol: int = 4) -> bytes:
    return gzip.compress(pickle.dumps(root, protocol), 1)


def hand_made(*parts: bytes) -> bytes:
    return gzip.compress(b"\x80\x03" + b"".join(parts) + b".")


def texts(*names: bytes) -> bytes:
    """A list of texts, which are the first things in the memo."""
    return b"(" + b"".join(b"X" + struct.pack("<I", len(n)) + n + b"q" + bytes([i]) for i, n in enumerate(names)) + b"l"


# -- one thing named many times


@refused
def one_segment_named_19_thousand_times() -> bytes:
    blocks = b"]q\xc8(" + b"}X\x04\x00\x00\x00sizeK\x05s" * 1000 + b"e"
    one = b"}(X\x07\x00\x00\x00addressK\x00X\x0a\x00\x00\x00total_sizeM\x88\x13X\x06\x00\x00\x00blocks" + blocks + b"u"
    return hand_made(b"]q\xc9(", one, b"q\x00", b"h\x00" * 19_000, b"e")


@refused
def one_event_named_3_million_times() -> bytes:
    one = b"}q\x00(X\x06\x00\x00\x00actionX\x05\x00\x00\x00allocX\x04\x00\x00\x00addrK\x00X\x04\x00\x00\x00sizeK\x05u"
    return hand_made(b"}X\x0d\x00\x00\x00device_traces](](", one, b"h\x00" * 3_000_000, b"ees")


REFUSED |= {
    "one_list_of_events_for_4000_devices": lambda: packed(
        {"segments": [], "device_traces": [[alloc(BASE + 512 * i, 512) for i in range(500)]] * 4000}
    ),
    "one_annotation_named_many_times": lambda: packed(
        snapshot(
            [alloc(BASE, 1)],
            external_annotations=[{"name": "step", "stage": "START", "device": 0, "time_us": 1}] * 1_000_000,
        )
    ),
}


@refused
def one_list_of_blocks_in_many_segments() -> bytes:
    blocks = [block(BASE + 512 * i, 512) for i in range(1000)]
    rows = [{"device": 0, "address": BASE, "total_size": 512_000, "stream": 0, "blocks": blocks} for _ in range(5000)]
    return packed({"segments": rows})


@read
def one_list_of_frames_for_all() -> bytes:
    """Return a snapshot whose events share one long list of frames, like torch's but longer."""
    frames = [frame(f"f{i}", line=i) for i in range(500)]
    return packed(snapshot([alloc(BASE + 512 * i, 512, frames=frames) for i in range(2000)]))


# -- texts


@read
def frames_that_share_a_name_of_4_mb() -> bytes:
    long = "/x" * (2 << 20)
    frames = [frame(f"f{i}", long, i) for i in range(2000)]
    return packed(snapshot([alloc(BASE + 512 * i, 512, frames=frames[i : i + 20]) for i in range(1900)]))


@refused
def thirty_six_thousand_frames_that_share_long_names() -> bytes:
    frames = [frame("f" * 4000, "/x" * 2000, i) for i in range(36_000)]
    return packed(snapshot([alloc(BASE + 512 * i, 512, frames=[each]) for i, each in enumerate(frames)]))


@refused
def many_deep_stacks_of_long_names() -> bytes:
    frames = [frame(f"f{i}", "/x" * 2000, i) for i in range(2000)]
    return packed(snapshot([alloc(BASE + 512 * i, 512, frames=frames[i:]) for i in range(450)]))


@read
def texts_of_every_place_are_long() -> bytes:
    long = "x" * 1_000_000
    rows = [alloc(BASE, 512, compile_context=long, user_metadata=long + "y", frames=[frame(long, long)])]
    return packed(
        snapshot(
            [*rows, event(long, BASE, 512)],
            [segment(BASE, 1024, [block(BASE, 512, state=long)], **{long: long})],
            allocator_settings={long: long, "PYTORCH_CUDA_ALLOC_CONF": "a:" * 1_000_000},
            external_annotations=[{"name": long, "stage": "START", "device": 0, "time_us": 1}],
            memviz={
                "version": 1,
                "about": {"origin": "predicted", "on": long, "facts": {long: long}},
                "modules": [long],
            },
        )
    )


@read
def names_that_are_markup_escapes_and_bidi() -> bytes:
    names = [
        "<script>alert(1)</script>",
        "\x1b]0;title\x07\x1b[2J",
        "\u202egpj.exe",
        "\r\n\x00",
        "%s{0}{x}",
        "</div>'\"",
    ]
    frames = [frame(name, name, 1) for name in names]
    rows = [
        alloc(BASE + 512 * i, 512, frames=[each], user_metadata=name)
        for i, (each, name) in enumerate(zip(frames, names, strict=True))
    ]
    return packed(snapshot([*rows, *(event(name, BASE, 1) for name in names)]))


@read
def halves_of_characters_in_json() -> bytes:
    half = '"\\ud800"'
    frames = f'[{{"name": {half}, "filename": {half}, "line": 1}}]'
    one = f'{{"action": "alloc", "addr": 5, "size": 512, "stream": 0, "frames": {frames}, "user_metadata": {half}}}'
    other = f'{{"action": {half}, "addr": 5, "size": 512, {half}: {half}}}'
    settings = f"{{{half}: {half}}}"
    return (
        f'{{"segments": [], {half}: 1, "device_traces": [[{one}, {other}]], "allocator_settings": {settings}}}'.encode()
    )


# -- stacks


@read
def a_stack_of_400_thousand_frames() -> bytes:
    frames = [frame(f"f{i}", line=i) for i in range(1000)] * 400
    return packed(snapshot([alloc(BASE, 512, frames=frames), *free(BASE, 512, frames=frames[5:])]))


@read
def a_stack_of_100_thousand_frames_in_rows_of_events() -> bytes:
    one = frame("f")
    rows = [alloc(BASE + 512 * i, 512, frames=[one] * (100_000 + i)) for i in range(3)]
    return packed(snapshot([*rows, *(alloc(BASE + 512 * i, 512, frames=[one]) for i in range(3, 100))]))


@read
def recursion_400_deep_with_600_leaves() -> bytes:
    deep = [frame("again", "own.py", i) for i in range(400)]
    rows = [alloc(BASE + 512 * i, 512, frames=[frame("leaf", "own.py", i), *deep[: 1 + i % 400]]) for i in range(600)]
    return packed(snapshot(rows))


# -- numbers


@read
def numbers_at_their_ends() -> bytes:
    far = 2**64 - 1
    rows = [
        alloc(far, 2**57, stream=far, time_us=-(2**62), pool_id=(far, far), frames=[frame("f", line=far)]),
        alloc(2**63, 1, stream=-1, time_us=2**62),
        {"action": "oom", "device_free": far, "size": 2**62 - 1, "stream": 0},
        *free(far, 2**57),
        event("segment_alloc", 0, 2**57),
        event("segment_free", 0, 2**57),
    ]
    return packed(snapshot(rows, [segment(2**63, 2**56, [block(2**63, 2**55)], device=0)]))


@read
def sizes_of_exabytes_to_replay() -> bytes:
    rows = [alloc(BASE + i * 2**50, 2**50) for i in range(500)]
    return packed(snapshot([each for row in rows for each in (row, *free(row["addr"], 2**50))]))


@read
def sizes_of_nothing() -> bytes:
    rows = [each for i in range(500) for each in (alloc(BASE, 0), *free(BASE, 0))]
    return packed(snapshot(rows, [segment(BASE, 0, [])]))


# -- many of what there are few of


@read
def three_hundred_devices() -> bytes:
    rows = [segment(BASE, 1024, [block(BASE, 512)], device=i) for i in range(300)]
    return packed({"segments": rows, "device_traces": [[alloc(BASE, 512)] for _ in range(300)]})


@read
def out_of_memory_20_thousand_times() -> bytes:
    rows = [alloc(BASE + 512 * i, 512, frames=[frame("f", line=i % 50)]) for i in range(20_000)]
    lost = [
        {"action": "oom", "device_free": 1, "size": 1 << 30, "stream": 0, "frames": [frame("g")]} for _ in range(20_000)
    ]
    return packed(snapshot([each for pair in zip(rows, lost, strict=True) for each in pair]))


@read
def annotations_that_nest_50_thousand_deep() -> bytes:
    starts = [{"name": f"n{i}", "stage": "START", "device": 0, "time_us": i} for i in range(50_000)]
    rows = [alloc(BASE + 512 * i, 512, time_us=i * 50, frames=[frame("f")]) for i in range(1000)]
    return packed(snapshot(rows, external_annotations=starts))


@read
def thirty_thousand_blocks() -> bytes:
    blocks = [block(BASE + 512 * i, 512, frames=[]) for i in range(30_000)]
    return packed(snapshot([], [segment(BASE, 512 * 30_000, blocks)]))


@read
def a_hundred_and_fifty_thousand_events() -> bytes:
    rows = (alloc(BASE + 512 * i, 512, time_us=i, frames=[]) for i in range(50_000))
    return packed(snapshot([each for row in rows for each in (row, *free(row["addr"], 512, time_us=5, frames=[]))]))


# -- pickles


@read
def twenty_thousand_stacks_of_300_frames() -> bytes:
    frames = [frame(f"f{i}", line=i) for i in range(2000)]
    stacks = ([frames[i % 2000], *frames[7 * i % 1700 :][:299]] for i in range(20_000))
    return packed(snapshot([alloc(BASE + 512 * i, 512, frames=each) for i, each in enumerate(stacks)]))


@read
def four_thousand_stacks_of_900_random_frames() -> bytes:
    """The stacks share no prefix, so that a tree of them has as many nodes as there are frames."""
    luck = random.Random(5)
    frames = [frame(f"f{i}", "own.py", i) for i in range(2000)]
    rows = [alloc(BASE + 512 * i, 512, frames=luck.choices(frames, k=900)) for i in range(4000)]
    return packed(snapshot(rows))


@read
def a_million_annotations() -> bytes:
    names = texts(b"external_annotations", b"segments", b"name", b"stage", b"device", b"time_us", b"step", b"START")
    one = b"}(h\x02h\x06h\x03h\x07h\x04K\x00h\x05K\x05u"
    block = b"](}(X\x04\x00\x00\x00sizeK\x05ue"
    segment = (
        b"](}(X\x07\x00\x00\x00addressK\x00X\x0a\x00\x00\x00total_sizeK\x05X\x06\x00\x00\x00blocks" + block + b"ue"
    )
    return hand_made(b"(X\x01\x00\x00\x00_", names, b"h\x01", segment, b"h\x00](", one * 1_000_000, b"ed")


# Numbers that no trace has, and one event for many devices.
REFUSED |= {
    # A crash of the fuzzer, in 861 bytes: notes on every device took 12 s.
    "one_list_of_one_event_for_600_devices": lambda: packed(
        {"segments": [], "device_traces": [[alloc(BASE, 512)]] * 600}, 2
    ),
    "sums_beyond_64_bits": lambda: packed(snapshot([alloc(BASE, 2**61), alloc(BASE, 2**61)])),
    "a_number_of_many_digits_in_json": lambda: (
        b'{"segments": [], "device_traces": [[{"action": "alloc", "addr": ' + b"9" * 100_000 + b"}]]}"
    ),
    "infinity_in_json": lambda: b'{"device_traces": [[{"action": "alloc", "addr": 1, "size": Infinity}]]}',
    "nan_in_a_pickle": lambda: packed(snapshot([alloc(BASE, float("nan"))])),
}


# Many of what there are few of.
READ |= {
    "many_settings": lambda: packed(
        snapshot([alloc(BASE, 512)], allocator_settings={f"key {i}": "[" * 5_000 for i in range(5_000)})
    ),
    "streams_and_pools_without_end": lambda: packed(
        snapshot([alloc(BASE + 512 * i, 512, stream=i, pool_id=(i, 0)) for i in range(20_000)])
    ),
    "segments_that_overlap": lambda: packed(
        snapshot([alloc(BASE, 512)], [segment(BASE, 2 << 20, [block(BASE, 512)]) for _ in range(3000)])
    ),
}


def with_events(events: bytes) -> bytes:
    keys = texts(b"action", b"addr", b"size", b"compile_context", b"user_metadata", b"alloc", b"x")
    return hand_made(b"(X\x01\x00\x00\x00_", keys, b"X\x0d\x00\x00\x00device_traces", b"](](", events, b"ee", b"d")


@read
def text_that_looks_like_more_and_more_text() -> bytes:
    """Return a file for which the event pattern once tried every end of every text (quadratic time)."""
    texts = b"".join(b"h" + bytes([key]) + b"X" + struct.pack("<I", 6000) + b"X\x8c" * 3000 for key in (3, 4))
    return with_events((b"}(h\x00h\x05h\x01K\x05h\x02K\x05" + texts + b"u") * 40)


@read
def rows_of_events_that_each_end_at_once() -> bytes:
    """A number where a text is: good for a single event, and the end of every row of them."""
    first = b"}(h\x00h\x05h\x01K\x05h\x02K\x05h\x03h\x06u"
    return with_events(first * 20 + b"}(h\x00h\x05h\x01K\x05h\x02K\x05h\x03h\x05u" * 60_000)


@refused
def one_table_of_metadata_for_many_events() -> bytes:
    """Each event's table is written in full, and the batch of them is long."""
    table = {str(i): "x" * 1000 for i in range(900)}
    return packed(snapshot([alloc(BASE + 512 * i, 512, user_metadata=table) for i in range(16_000)]))


# Operations of a pickle without end, and JSON of few and long texts.
REFUSED |= {
    "frames_of_one_byte": lambda: hand_made(b"(" + (b"\x95" + bytes(8) + b"N") * 500_000 + b"l"),
    "deep_nesting": lambda: gzip.compress(b"\x80\x04" + b"]" * 500_000 + b"a" * 499_999 + b"."),
    "tuples_in_tuples": lambda: gzip.compress(b"\x80\x04)" + b"\x85" * 500_000 + b"."),
    "open_marks": lambda: gzip.compress(b"\x80\x04" + b"(" * 500_000 + b"."),
    "a_place_far_beyond_the_memo": lambda: gzip.compress(b"\x80\x02" + b"}r\xff\xff\xff\xff" * 400_000 + b"."),
    "places_of_the_memo_without_end": lambda: gzip.compress(
        b"\x80\x02K\x00" + b"".join(b"r" + struct.pack("<I", i) for i in range(300_000)) + b".", 1
    ),
    "operations_that_do_nothing": lambda: gzip.compress(b"\x80\x04" * 1_000_000),
    "a_class": lambda: b"\x80\x02cos\nsystem\n(X\x04\x00\x00\x00trueR.",
    "a_huge_integer": lambda: gzip.compress(b"\x80\x02\x8b\xff\xff\xff\x7f" + bytes(10_000_000)),
    "numbers_in_lists_without_end": lambda: hand_made(b"(" + b"K\x00" * 2_000_000 + b"l"),
    "dicts_in_json_without_end": lambda: gzip.compress(b'{"segments": [' + b"{}," * 8_000_000 + b"{}]}"),
    "brackets_in_json_without_end": lambda: gzip.compress(b"[" * 12_000_000),
    "zeros_in_gzip_without_end": lambda: gzip.compress(b"\x80\x04" + bytes(100_000_000), 1),
    "json_of_one_long_text": lambda: gzip.compress(
        json.dumps({"device_traces": [[{"action": "alloc", "x": "y" * 40_000_000}]]}).encode()[:-4], 1
    ),
    # One character beyond Latin-1 makes every character of the text take four bytes.
    "json_of_one_long_text_with_one_wide_character": lambda: gzip.compress(
        ('{"segments": [], "x": "' + "y" * 300_000_000 + '\U0001f600"}').encode(), 1
    ),
    "one_long_text_under_many_keys_of_metadata": lambda: packed(
        snapshot([alloc(BASE, 512, user_metadata=dict.fromkeys(map(str, range(20_000)), "x" * 1_000_000))])
    ),
}
