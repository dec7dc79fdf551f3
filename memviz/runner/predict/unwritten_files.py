"""What stands in the place of a file that is not written, so that a program finds it, may rename it and remove it.

For `torch.save` it is a line of text, for safetensors the file's own header and no data behind it. It is written only
where nothing is yet, and is gone when the prediction is over.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from torch import Tensor

from memviz.runner.predict.torch_patches import Patches

_MARK = b"memviz predict: nobody computed the values of this file. Number "
_LONGEST = len(_MARK) + 20
_KEY = "values that nobody computed"
_DTYPES = {
    "torch.float64": "F64",
    "torch.float32": "F32",
    "torch.float16": "F16",
    "torch.bfloat16": "BF16",
    "torch.float8_e4m3fn": "F8_E4M3",
    "torch.float8_e5m2": "F8_E5M2",
    "torch.int64": "I64",
    "torch.int32": "I32",
    "torch.int16": "I16",
    "torch.int8": "I8",
    "torch.uint8": "U8",
    "torch.bool": "BOOL",
}


class UnwrittenFiles:
    def __init__(self, kept: dict[Any, Any]) -> None:
        """`kept` is what would be in them, by path."""
        self._kept = kept
        self._paths: set[str] = set()

    def leave_text(self, path: str, number: int) -> None:
        self._leave(path, lambda: text_of(number))

    def leave_tensors(self, path: str, tensors: dict[str, Tensor], metadata: dict[str, str] | None) -> None:
        self._leave(path, lambda: _header(tensors, metadata), sum(tensor.nbytes for tensor in tensors.values()))

    def _leave(self, path: str, text: Callable[[], bytes], empty: int = 0) -> None:
        if os.path.exists(path) and path not in self._paths:
            return
        with open(path, "wb") as file:
            file.write(text())
            file.truncate(file.tell() + empty)
        self._paths.add(path)

    def clear(self) -> None:
        for path in self._paths:
            if is_empty(path) or number_in(path) is not None:
                with suppress(OSError):
                    os.remove(path)

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Where the program gives them other names."""
        patches = Patches()
        try:
            for name in ("rename", "replace"):
                patches.replace(os, name, self._renaming(getattr(os, name)))
            yield
        finally:
            patches.undo()
            self.clear()

    def _renaming(self, rename: Any) -> Any:
        def renamed(src: Any, dst: Any, **kwargs: Any) -> Any:
            if kwargs or not self._paths:
                return rename(src, dst, **kwargs)
            old, new = os.path.abspath(os.fsdecode(src)), os.path.abspath(os.fsdecode(dst))
            if old in self._paths:
                self._kept[new] = self._kept.get(old)
                if os.path.exists(new) and new not in self._paths:
                    # A file of values, from another run, is not lost for one that has none.
                    return os.remove(old)
            rename(src, dst)
            inside = {path for path in self._paths if path == old or path.startswith(old + os.sep)}
            self._paths = (self._paths - inside) | {new + path[len(old) :] for path in inside}

        return renamed


def text_of(number: int) -> bytes:
    return _MARK + str(number).encode()


def number_in(file: Any) -> int | None:
    """Of the object that a line of text stands for; None where the file, or what was opened of it, is another."""
    try:
        if isinstance(file, str | os.PathLike):
            with open(file, "rb") as opened:
                text = opened.read(_LONGEST)
        else:
            at = file.tell()
            text = file.read(_LONGEST)
            file.seek(at)
    except (OSError, AttributeError):
        return None
    return int(text[len(_MARK) :]) if text.startswith(_MARK) else None


def is_empty(path: Any) -> bool:
    """Whether this is a file of tensors with nothing behind its header."""
    try:
        with open(path, "rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            return f'"{_KEY}"'.encode() in file.read(min(length, 1 << 10))
    except (OSError, TypeError, struct.error):
        return False


def _header(tensors: dict[str, Tensor], metadata: dict[str, str] | None) -> bytes:
    header: dict[str, Any] = {"__metadata__": {_KEY: "all", **(metadata or {})}}
    at = 0
    for name, tensor in tensors.items():
        end = at + tensor.nbytes
        header[name] = {"dtype": _DTYPES[str(tensor.dtype)], "shape": list(tensor.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text
