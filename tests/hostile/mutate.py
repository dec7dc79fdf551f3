"""Changes of a snapshot's file that keep most of it: of its objects, of its pickle's operations, of its bytes."""

from __future__ import annotations

import gzip
import json
import pickle
import pickletools
import random
import zlib
from copy import deepcopy
from functools import lru_cache
from typing import Any

Random = random.Random
_LONGEST = 60_000
_REMEMBERED = 500
"""Files that are changed again and again; looking through one by its operations takes longer than reading it."""
_VALUES: list[Any] = [
    None,
    True,
    -1,
    0,
    1,
    255,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**62,
    2**63 - 1,
    2**63,
    2**64 - 1,
    2**64,
    2**400,
    1.5,
    float("nan"),
    float("inf"),
    "",
    "alloc",
    "oom",
    "\ud800",
    "\x1b[2J\u202e",
    "x" * 5000,
    b"x",
    (),
    [],
    {},
    [[]],
    {"a": {"b": 1}},
]


def mutated(raw: bytes, other: bytes, luck: Random) -> bytes:
    """`other` lends bytes. One to three changes, packed again where it was packed."""
    is_packed = raw[:2] == b"\x1f\x8b"
    if is_packed and luck.random() < 0.1:
        return _bytes(raw, other, luck)
    plain = _unpacked(raw) if is_packed else raw
    for _ in range(luck.choice((1, 1, 1, 2, 3))):
        plain = luck.choice((_objects, _objects, _operations, _operations, _bytes))(plain, other, luck)[:_LONGEST]
    return gzip.compress(plain, 1, mtime=0) if is_packed or luck.random() < 0.02 else plain


def _unpacked(raw: bytes) -> bytes:
    try:
        return zlib.decompressobj(31).decompress(raw, 1 << 20)
    except zlib.error:
        return raw


def _objects(raw: bytes, other: bytes, luck: Random) -> bytes:
    """Mutate parsed files of this fuzzer, for which Python's own reader is safe; others change as bytes."""
    is_json = raw[:1] in (b"{", b"[")
    if not is_json and any(code in raw for code in (b"c", b"\x93", b"i", b"R")) and not _is_plain(raw):
        return _bytes(raw, other, luck)
    try:
        root = json.loads(raw) if is_json else pickle.loads(raw)
        _change(root, luck)
        return json.dumps(root, default=str).encode() if is_json else pickle.dumps(root, luck.choice((0, 2, 4, 5)))
    except Exception:
        return _bytes(raw, other, luck)


@lru_cache(_REMEMBERED)
def _is_plain(raw: bytes) -> bool:
    try:
        return all(op.name not in _NAMES_CLASSES for op, _, _ in pickletools.genops(raw))
    except Exception:
        return False


_NAMES_CLASSES = {"GLOBAL", "STACK_GLOBAL", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "REDUCE", "BUILD", "EXT1", "EXT2"} | {
    "EXT4",
    "PERSID",
    "BINPERSID",
}


def _change(root: Any, luck: Random) -> None:
    holders = _holders(root)
    holder, key = luck.choice(holders)
    kind = luck.randrange(6)
    if kind == 0:
        other, place = luck.choice(holders)
        holder[key] = other[place]
    elif kind == 1 and isinstance(holder, dict):
        del holder[key]
    elif kind == 2 and isinstance(holder, list):
        holder[key:key] = [holder[key]] * luck.choice((1, 2, 20, 300))
    elif kind == 3 and isinstance(holder, dict):
        holder[luck.choice(("frames", "blocks", "category", "memviz", "new", "time_us"))] = deepcopy(holder[key])
    elif kind == 4 and type(holder[key]) is int:
        holder[key] += luck.choice((-1, 1, 512, -512, 2**32, -(2**63)))
    else:
        holder[key] = luck.choice(_VALUES)


def _holders(root: Any) -> list[tuple[Any, Any]]:
    """Return container and key of each value, a few levels deep because references may be cyclic."""
    found: list[tuple[Any, Any]] = []
    level = [root]
    for _ in range(7):
        below = []
        for each in level[:2000]:
            keys = list(each) if isinstance(each, dict) else range(len(each)) if isinstance(each, list) else ()
            found += [(each, key) for key in keys]
            below += [each[key] for key in keys]
        level = below
    return found


def _operations(raw: bytes, other: bytes, luck: Random) -> bytes:
    places = _places(raw)
    if not places:
        return _bytes(raw, other, luck)
    first, second, goal = sorted(luck.choices(range(len(places)), k=2)) + [luck.choice(places)]
    piece = raw[places[first] : places[min(second, first + 40)]]
    kind = luck.randrange(4)
    if kind == 0:
        return raw[: places[first]] + raw[places[min(second, first + 40)] :]
    if kind == 1:
        return raw[:goal] + piece * luck.choice((1, 2, 50)) + raw[goal:]
    if kind == 2:
        code = luck.choice(b"()]}.0123NKMJh\x94qjreualtsdXVTSUGFIL\x85\x86\x87\x88\x89\x8a\x8b\x8c\x8d\x8e\x95")
        return raw[:goal] + bytes([code]) + raw[goal + luck.randrange(2) :]
    return raw[:goal] + piece + raw[goal + len(piece) :]


@lru_cache(_REMEMBERED)
def _places(raw: bytes) -> tuple[int, ...]:
    """Return the offsets of the pickle's operations, or none if it is not a pickle."""
    try:
        return tuple(at for _, _, at in pickletools.genops(raw) if at is not None)
    except Exception:
        return ()


def _bytes(raw: bytes, other: bytes, luck: Random) -> bytes:
    if not raw:
        return other
    at = luck.randrange(len(raw))
    size = luck.choice((1, 1, 2, 4, 8, 64))
    kind = luck.randrange(5)
    if kind == 0:
        return raw[:at] + luck.randbytes(size) + raw[at + size :]
    if kind == 1:
        return raw[:at] + raw[at + size :]
    if kind == 2:
        return raw[:at] + raw[at : at + size] * luck.choice((2, 20, 300)) + raw[at:]
    if kind == 3:
        begin = luck.randrange(max(len(other), 1))
        return raw[:at] + other[begin : begin + luck.choice((4, 40, 400))] + raw[at:]
    return raw[:at] + bytes([raw[at] ^ (1 << luck.randrange(8))]) + raw[at + 1 :]
