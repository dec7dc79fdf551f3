"""Files put together operation by operation: what no pickler writes, and what never ends. Read with `files`."""

import gzip
import json
import struct

from tests.hostile.files import BASE, REFUSED, hand_made, packed, read, refused, texts
from tests.traces import alloc, snapshot


def event_keys() -> bytes:
    return texts(b"action", b"addr", b"size", b"compile_context", b"user_metadata", b"alloc", b"x")


def with_events(events: bytes) -> bytes:
    return hand_made(
        b"(X\x01\x00\x00\x00_", event_keys(), b"X\x0d\x00\x00\x00device_traces", b"](](", events, b"ee", b"d"
    )


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
