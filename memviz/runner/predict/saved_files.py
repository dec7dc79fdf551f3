"""Saved files where values are not computed: `torch.save`, `torch.load` and safetensors.

A checkpoint of zeros would be worse than none, so tensors without values are not written: a placeholder stands in
for the file (a line of text, or for safetensors its header), so that the program can load, rename or remove it, and
is removed after the prediction. Of existing files, large tensors are read only where the program reads them.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from memviz.runner.predict.assumptions import Assumptions
from memviz.runner.predict.host import Host
from memviz.runner.predict.named_devices import CUDA_0, META, NamedDevices
from memviz.runner.predict.torch_patches import Patches

_PLACEHOLDER_MARK = b"memviz predict: nobody computed the values of this file. Number "
_LONGEST_PLACEHOLDER = len(_PLACEHOLDER_MARK) + 20
_PLACEHOLDER_KEY = "values that nobody computed"
_SAFETENSORS_DTYPES = {
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


class PlaceholderFiles:
    def __init__(self, kept: dict[Any, Any]) -> None:
        """`kept` is what would be in them, by path."""
        self._kept = kept
        self._paths: set[str] = set()

    def leave_text(self, path: str, number: int) -> None:
        self._leave(path, lambda: placeholder_text(number))

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
            if is_placeholder(path) or placeholder_number(path) is not None:
                with suppress(OSError):
                    os.remove(path)

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Follow files that the program renames."""
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


def placeholder_text(number: int) -> bytes:
    return _PLACEHOLDER_MARK + str(number).encode()


def placeholder_number(file: Any) -> int | None:
    """Return the number of the object that a placeholder file represents; None for any other file."""
    try:
        if isinstance(file, str | os.PathLike):
            with open(file, "rb") as opened:
                text = opened.read(_LONGEST_PLACEHOLDER)
        else:
            at = file.tell()
            text = file.read(_LONGEST_PLACEHOLDER)
            file.seek(at)
    except (OSError, AttributeError):
        return None
    return int(text[len(_PLACEHOLDER_MARK) :]) if text.startswith(_PLACEHOLDER_MARK) else None


def is_placeholder(path: Any) -> bool:
    """Return whether a file is a placeholder: a safetensors header without data."""
    try:
        with open(path, "rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            return f'"{_PLACEHOLDER_KEY}"'.encode() in file.read(min(length, 1 << 10))
    except (OSError, TypeError, struct.error):
        return False


def _header(tensors: dict[str, Tensor], metadata: dict[str, str] | None) -> bytes:
    header: dict[str, Any] = {"__metadata__": {_PLACEHOLDER_KEY: "all", **(metadata or {})}}
    at = 0
    for name, tensor in tensors.items():
        end = at + tensor.nbytes
        header[name] = {
            "dtype": _SAFETENSORS_DTYPES[str(tensor.dtype)],
            "shape": list(tensor.shape),
            "data_offsets": [at, end],
        }
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


_SAFETENSORS_FUNCTIONS = ("safe_open", "save_file", "safe_save_file")
_SAFETENSORS_USERS = ("safetensors", "transformers", "diffusers", "accelerate", "peft")


@dataclass(frozen=True)
class _FollowedDevice:
    named: NamedDevices
    keeps: Callable[[Any, Any, Any], bool]
    lose: Callable[[Tensor], None]


_followed_devices: list[_FollowedDevice] = []
"""One, while a device is in use. Libraries that are loaded meanwhile hold our functions for good."""


def follow_safetensors(
    patches: Patches, named: NamedDevices, keeps: Callable[[Any, Any, Any], bool], lose: Callable[[Tensor], None]
) -> None:
    """Only where a program has it anyway. `keeps` says whether a file's tensors were kept instead of written."""
    functions = _safetensors_functions()
    if functions is None:
        return
    _followed_devices.append(_FollowedDevice(named, keeps, lose))
    patches.call_back(_followed_devices.clear)
    for original, ours in functions:
        _replace_everywhere(patches, original, ours)


@cache
def _safetensors_functions() -> tuple[tuple[Any, Any], ...] | None:
    """Their own, and ours instead."""
    try:
        from safetensors import safe_open as open_
        from safetensors.torch import save_file as save
    except ImportError:
        return None

    def save_file(tensors: Any, filename: Any, metadata: Any = None, *args: Any, **kwargs: Any) -> Any:
        if not _followed_devices or not _followed_devices[0].keeps(tensors, filename, metadata):
            save(tensors, filename, metadata, *args, **kwargs)

    def safe_open(filename: Any, framework: Any = "pt", device: Any = "cpu", **kwargs: Any) -> Any:
        on_card = bool(_followed_devices) and _followed_devices[0].named.means_us(device, numbers=True)
        opened = open_(filename, framework, "cpu" if on_card else device, **kwargs)
        lose = _followed_devices[0].lose if _followed_devices and is_placeholder(filename) else None
        if not on_card and lose is None:
            return opened
        return _OpenedFile(opened, lambda tensor: _arrived(tensor, lose, on_card))

    return (open_, safe_open), (save, save_file)


def _arrived(tensor: Tensor, lose: Callable[[Tensor], None] | None, on_card: bool) -> Tensor:
    with torch._C.DisableTorchFunction():
        if lose is not None:
            lose(tensor)
        return tensor.to(META) if on_card else tensor


def _replace_everywhere(patches: Patches, original: Any, ours: Any) -> None:
    """Libraries that are loaded already have it under names of their own."""
    for name, module in list(sys.modules.items()):
        if module is not None and name.partition(".")[0] in _SAFETENSORS_USERS:
            for attribute in _SAFETENSORS_FUNCTIONS:
                if vars(module).get(attribute) is original:
                    patches.replace(module, attribute, ours)


class _OpenedFile:
    """A file of safetensors whose tensors are the card's, or have no values."""

    def __init__(self, opened: Any, arrived: Callable[[Any], Any]) -> None:
        self._opened = opened
        self._arrived = arrived

    def __getattr__(self, name: str) -> Any:
        return getattr(self._opened, name)

    def __enter__(self) -> _OpenedFile:
        self._opened.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._opened.__exit__(*error)

    def get_tensor(self, name: str) -> Any:
        return self._arrived(self._opened.get_tensor(name))

    def get_tensors(self, *names: Any) -> Any:
        return {name: self._arrived(tensor) for name, tensor in self._opened.get_tensors(*names).items()}

    def get_slice(self, name: str) -> _OpenedSlice:
        return _OpenedSlice(self._opened.get_slice(name), self._arrived)


class _OpenedSlice:
    def __init__(self, of: Any, arrived: Callable[[Any], Any]) -> None:
        self._of = of
        self._arrived = arrived

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of, name)

    def __getitem__(self, where: Any) -> Any:
        return self._arrived(self._of[where])


def path_of(file: Any) -> str | None:
    return os.path.abspath(os.fsdecode(file)) if isinstance(file, str | os.PathLike) else None


_WithoutFunctions = torch._C.DisableTorchFunction
"""Tensors as they are here, not as the program sees them."""
_NOT_WRITTEN = (
    "values that are not computed were not written to a file; who loads that file in this run gets their shapes"
)


@contextmanager
def kept(host: Host, assumptions: Assumptions, named: NamedDevices) -> Iterator[None]:
    patches = Patches()
    files = SavedFiles(host, assumptions, named)
    try:
        files.save = patches.replace(torch, "save", files.saved)
        files.load = patches.replace(torch, "load", files.loaded)
        for name in ("save", "load"):
            patches.replace(torch.serialization, name, getattr(torch, name))
        follow_safetensors(patches, named, files.keeps_tensors, files.lose)
        with files.unwritten.followed():
            yield
    finally:
        patches.undo()


class SavedFiles:
    save: Callable[..., Any]
    load: Callable[..., Any]

    def __init__(self, host: Host, assumptions: Assumptions, named: NamedDevices) -> None:
        self._host = host
        self._assumptions = assumptions
        self._named = named
        self._kept: dict[Any, Any] = {}
        """Saved objects by the path of the file."""
        self._numbered: list[Any] = []
        """The same, and what was written to open files, by the number in the text that stands there instead."""
        self.unwritten = PlaceholderFiles(self._kept)

    def saved(self, obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        if self.keeps(obj, f):
            number = len(self._numbered) - 1
            if (path := path_of(f)) is not None:
                self.unwritten.leave_text(path, number)
            else:
                f.write(placeholder_text(number))
            return
        of_card: set[int] = set()

        def with_values(tensor: Tensor) -> Tensor:
            if not tensor.is_meta:
                return tensor
            values = tensor.detach().to("cpu")
            of_card.add(values.untyped_storage()._cdata)
            return values

        if not isinstance(obj, nn.Module):
            with _WithoutFunctions():
                obj = _mapped(with_values, obj)
        patches = Patches()
        where = torch.serialization.location_tag
        patches.replace(torch.serialization, "location_tag", lambda s: str(CUDA_0) if s._cdata in of_card else where(s))
        try:
            self.save(obj, f, *args, **kwargs)
        finally:
            patches.undo()

    def keeps(self, obj: Any, f: Any) -> bool:
        """Keep an object with unknown values for a later load, and return whether it was kept."""
        with _WithoutFunctions():
            if not any(map(self._host.is_unknown, _tensors_of(obj))):
                self._kept.pop(path_of(f), None)
                return False
            self._assumptions.state(_NOT_WRITTEN)
            self._numbered.append(_as_on_host(obj))
            if (path := path_of(f)) is not None:
                self._kept[path] = self._numbered[-1]
            return True

    def keeps_tensors(self, tensors: Any, f: Any, metadata: Any) -> bool:
        path = path_of(f)
        if path is None or not self.keeps(tensors, f):
            return False
        self.unwritten.leave_tensors(path, tensors, metadata)
        return True

    def lose(self, tensor: Tensor) -> None:
        """It came from a file that has no values."""
        self._host.unknown.add(tensor)

    def loaded(self, f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        with _WithoutFunctions():
            path = path_of(f)
            if path in self._kept:
                return self._moved(self._kept[path], map_location)
            number = placeholder_number(f)
            if number is not None and number < len(self._numbered):
                return self._moved(self._numbered[number], map_location)
            return self._read(f, map_location, args, kwargs)

    def _read(self, f: Any, map_location: Any, args: Any, kwargs: Any) -> Any:
        if isinstance(f, str | os.PathLike) and kwargs.get("mmap") is None and zipfile.is_zipfile(f):
            kwargs["mmap"] = True
        if map_location is not None and not self._means_card(map_location):
            return self.load(f, map_location, *args, **kwargs)
        were_there: set[int] = set()

        def on_host(storage: Any, location: str) -> Any:
            if location.startswith("cuda"):
                were_there.add(getattr(storage, "_untyped_storage", storage)._cdata)
            return storage

        loaded = self.load(f, on_host, *args, **kwargs)
        if map_location is not None:
            return self._moved(loaded, map_location)
        return _mapped(lambda t: t.to(META) if t.untyped_storage()._cdata in were_there else t, loaded)

    def _means_card(self, location: Any) -> bool:
        return self._named.means_us(location, numbers=True)

    def _moved(self, obj: Any, location: Any) -> Any:
        if location is None or not self._means_card(location):
            return _mapped(lambda tensor: tensor.clone(), obj)
        return _mapped(lambda tensor: tensor.to(META), obj)


def _tensors_of(obj: Any) -> Iterator[Tensor]:
    if isinstance(obj, nn.Module):
        yield from (*obj.parameters(), *obj.buffers())
    elif isinstance(obj, Tensor):
        yield obj
    elif isinstance(obj, dict):
        for item in obj.values():
            yield from _tensors_of(item)
    elif isinstance(obj, list | tuple | set):
        for item in obj:
            yield from _tensors_of(item)


def _as_on_host(obj: Any) -> Any:
    return _mapped(lambda tensor: tensor.detach().to("cpu"), obj)


def _mapped(change: Callable[[Tensor], Tensor], obj: Any) -> Any:
    if isinstance(obj, nn.Module):
        return obj._apply(change)  # type: ignore[no-untyped-call]
    return tree_map_only(Tensor, change, obj)
