"""Writes as the pickler inside PyTorch's C++ does, which programs without Python use: protocol 2, texts numbered as
they are written, lists and dicts once they are whole and only where something else holds them too, tuples never."""

import struct
from collections import Counter
from typing import Any


def cpp_dumps(value: dict[str, Any]) -> bytes:
    writer = _Writer(value)
    writer.write(value)
    return b"\x80\x02" + b"".join(writer.pieces) + b"."


class _Writer:
    def __init__(self, root: dict[str, Any]) -> None:
        self.pieces: list[bytes] = []
        self.places: dict[int | str, int] = {}
        self.holders: Counter[int] = Counter()
        self._hold(root, "")
        self.held = {id(root), *map(id, root.values())}

    def _hold(self, value: Any, key: str) -> None:
        """PyTorch holds every stack, and every dict with one, in separate lists until it has written them."""
        if type(value) not in (list, dict, tuple):
            return
        seen = id(value) in self.holders
        self.holders[id(value)] += 2 if key == "frames" or (type(value) is dict and value.get("frames")) else 1
        if not seen:
            for name, inside in value.items() if type(value) is dict else (("", inside) for inside in value):
                self._hold(inside, name)

    def write(self, value: Any) -> None:
        known = self.places.get(value if type(value) is str else id(value))
        if known is not None and type(value) in (str, list, dict):
            self.pieces.append(b"h" + bytes([known]) if known < 256 else b"j" + struct.pack("<I", known))
            return
        getattr(self, f"_{type(value).__name__}")(value)
        if type(value) in (list, dict) and (self.holders[id(value)] > 1 or id(value) in self.held):
            self._put(id(value))

    def _put(self, key: int | str) -> None:
        place = self.places[key] = len(self.places)
        self.pieces.append(b"q" + bytes([place]) if place < 256 else b"r" + struct.pack("<I", place))

    def _NoneType(self, value: None) -> None:
        self.pieces.append(b"N")

    def _bool(self, value: bool) -> None:
        self.pieces.append(b"\x88" if value else b"\x89")

    def _int(self, value: int) -> None:
        if 0 <= value < 256:
            self.pieces.append(b"K" + bytes([value]))
        elif 0 <= value < 65536:
            self.pieces.append(b"M" + struct.pack("<H", value))
        elif -(2**31) <= value < 2**31:
            self.pieces.append(b"J" + struct.pack("<i", value))
        else:
            self.pieces.append(b"\x8a\x08" + struct.pack("<q", value))

    def _float(self, value: float) -> None:
        self.pieces.append(b"G" + struct.pack(">d", value))

    def _str(self, value: str) -> None:
        raw = value.encode()
        self.pieces.append(b"X" + struct.pack("<I", len(raw)) + raw)
        self._put(value)

    def _tuple(self, value: tuple[Any, ...]) -> None:
        for each in value:
            self.write(each)
        self.pieces.append({0: b")", 1: b"\x85", 2: b"\x86", 3: b"\x87"}[len(value)])

    def _list(self, value: list[Any]) -> None:
        self.pieces.append(b"](")
        for each in value:
            self.write(each)
        self.pieces.append(b"e")

    def _dict(self, value: dict[str, Any]) -> None:
        self.pieces.append(b"}(")
        for key, each in value.items():
            self.write(key)
            self.write(each)
        self.pieces.append(b"u")
