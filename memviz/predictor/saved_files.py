"""Saved files where values are not computed: `torch.save`, `torch.load` and safetensors.

A checkpoint of zeros would be worse than none, so tensors without values are not written. A placeholder (a line of
text, or a safetensors header) replaces the file, so that the program can load, rename or remove it; it is removed
after the prediction. Large tensors of existing files are read only when the program reads them.
"""

from __future__ import annotations

import copy
import json
import os
import struct
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from memviz.predictor.compat import Patches, without_functions
from memviz.predictor.cuda.machine import NamedDevices
from memviz.predictor.recorder import AllocationRecorder
from memviz.predictor.shapes import tensors_among

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


def placeholder_number(file: Any) -> int | None:
    """Return the number of the object behind a placeholder; None for any other file."""
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


def is_safetensors_placeholder(path: Any) -> bool:
    """Return whether a safetensors file is a placeholder: a header without data."""
    try:
        with open(path, "rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            return f'"{_PLACEHOLDER_KEY}"'.encode() in file.read(min(length, 1 << 10))
    except (OSError, TypeError, struct.error):
        return False


def _safetensors_header(tensors: dict[str, Tensor], metadata: dict[str, str] | None) -> bytes:
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


_files_in_use: list[SavedFiles] = []
"""One, while a device is in use. A global, because libraries imported in that time keep our functions."""


def _follow_safetensors(patches: Patches, files: SavedFiles) -> None:
    functions = _safetensors_functions()
    if functions is None:
        return
    _files_in_use.append(files)
    patches.callback(_files_in_use.clear)
    # Libraries that are imported already have the functions under names of their own.
    users = ("safetensors", "transformers", "diffusers", "accelerate", "peft")
    for name, module in list(sys.modules.items()):
        if module is not None and name.partition(".")[0] in users:
            for attribute in ("safe_open", "save_file", "safe_save_file"):
                for original, replacement in functions:
                    if vars(module).get(attribute) is original:
                        patches.replace(module, attribute, replacement)


@cache
def _safetensors_functions() -> tuple[tuple[Any, Any], ...] | None:
    """Return the library's functions, each with its replacement; None without the library."""
    try:
        from safetensors import safe_open as open_
        from safetensors.torch import save_file as save
    except ImportError:
        return None

    def save_file(tensors: Any, filename: Any, metadata: Any = None, *args: Any, **kwargs: Any) -> Any:
        if not any(files.keep_tensors(tensors, filename, metadata) for files in _files_in_use):
            save(tensors, filename, metadata, *args, **kwargs)

    def safe_open(filename: Any, framework: Any = "pt", device: Any = "cpu", **kwargs: Any) -> Any:
        files = _files_in_use[0] if _files_in_use else None
        on_card = files is not None and files.devices.is_own(device, numbers=True)
        opened = open_(filename, framework, "cpu" if on_card else device, **kwargs)
        if files is None:
            return opened
        has_values = not is_safetensors_placeholder(filename)

        def loaded(tensor: Tensor) -> Tensor:
            with without_functions():
                if not has_values:
                    files.host.unknown.add(tensor)
                if not on_card:
                    files.host_memory.note_loaded(tensor)
                return tensor.to(files.devices.meta(device)) if on_card else tensor

        return _OpenedFile(opened, loaded)

    return (open_, safe_open), (save, save_file)


class _OpenedFile:
    """A safetensors file, or a slice of one, whose tensors are on the card or have no values."""

    def __init__(self, opened: Any, loaded: Callable[[Any], Any]) -> None:
        self._opened = opened
        self._loaded = loaded

    def __getattr__(self, name: str) -> Any:
        return getattr(self._opened, name)

    def __getitem__(self, where: Any) -> Any:
        return self._loaded(self._opened[where])

    def __enter__(self) -> _OpenedFile:
        self._opened.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._opened.__exit__(*error)

    def get_tensor(self, name: str) -> Any:
        return self._loaded(self._opened.get_tensor(name))

    def get_tensors(self, *names: Any) -> Any:
        return {name: self._loaded(tensor) for name, tensor in self._opened.get_tensors(*names).items()}

    def get_slice(self, name: str) -> _OpenedFile:
        return _OpenedFile(self._opened.get_slice(name), self._loaded)


def path_of(file: Any) -> str | None:
    return os.path.abspath(os.fsdecode(file)) if isinstance(file, str | os.PathLike) else None


_NOT_WRITTEN = (
    "values that are not computed were not written to a file; who loads that file in this run gets their shapes"
)


def follow_files(patches: Patches, recorder: AllocationRecorder, devices: NamedDevices) -> None:
    files = SavedFiles(recorder, devices)
    files.save = patches.replace(torch, "save", files.saved)
    files.load = patches.replace(torch, "load", files.loaded)
    for name in ("save", "load"):
        patches.replace(torch.serialization, name, getattr(torch, name))
    _follow_safetensors(patches, files)
    patches.callback(files.remove_placeholders)
    for name in ("rename", "replace"):
        patches.replace(os, name, files.renaming(getattr(os, name)))
    patches.replace(os, "mkdir", files.noting_folders(os.mkdir))


class SavedFiles:
    """Objects without values that the program saved, and the placeholders in place of their files."""

    save: Callable[..., Any]
    load: Callable[..., Any]

    def __init__(self, recorder: AllocationRecorder, devices: NamedDevices) -> None:
        self.host = recorder.host
        self.host_memory = recorder.host_memory
        self._card_of = recorder.card_of
        self.devices = devices
        self._assumptions = recorder.assumptions
        self._kept: dict[Any, Any] = {}
        """Saved objects by the path of the file."""
        self._numbered: list[Any] = []
        """The same, and objects written to open files, by the number in the placeholder."""
        self._of_card: dict[int, int] = {}
        """Cards of the storages of saved tensors that were on one."""
        self._placeholders: set[str] = set()
        self._folders: list[str] = []
        """Folders that the program made."""

    def saved(self, obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        if self._keep(obj, f):
            text = _PLACEHOLDER_MARK + str(len(self._numbered) - 1).encode()
            if (path := path_of(f)) is not None:
                self._leave(path, lambda: text)
            else:
                f.write(text)
                if isinstance(name := getattr(f, "name", None), str):
                    # The program has emptied it already, so it is removed whatever it was.
                    self._placeholders.add(os.path.abspath(name))
            return
        of_card: dict[int, int] = {}

        def with_values(tensor: Tensor) -> Tensor:
            if not tensor.is_meta:
                return tensor
            values = tensor.detach().to("cpu")
            of_card[values.untyped_storage()._cdata] = self._card_of(tensor) or 0
            return values

        with without_functions():
            obj = _mapped(with_values, obj)
        tag = torch.serialization.location_tag
        with Patches() as patches:
            changed = lambda one: f"cuda:{of_card[one._cdata]}" if one._cdata in of_card else tag(one)  # noqa: E731
            patches.replace(torch.serialization, "location_tag", changed)
            self.save(obj, f, *args, **kwargs)

    def _keep(self, obj: Any, f: Any) -> bool:
        """Keep an object with unknown values for a later load, and return whether it was kept."""
        with without_functions():
            if not any(map(self.host.is_unknown, _tensors_of(obj))):
                self._kept.pop(path_of(f), None)
                return False
            self._assumptions.state(_NOT_WRITTEN)
            self._numbered.append(_mapped(self._on_host, obj))
            if (path := path_of(f)) is not None:
                self._kept[path] = self._numbered[-1]
            return True

    def _on_host(self, tensor: Tensor) -> Tensor:
        copied = tensor.detach().to("cpu")
        if tensor.is_meta:
            self._of_card[copied.untyped_storage()._cdata] = self._card_of(tensor) or 0
            # In a real run it is on the host only until it is written.
            self.host_memory.forget(copied)
        return copied

    def keep_tensors(self, tensors: Any, f: Any, metadata: Any) -> bool:
        path = path_of(f)
        if path is None or not self._keep(tensors, f):
            return False
        size = sum(tensor.nbytes for tensor in tensors.values())
        self._leave(path, lambda: _safetensors_header(tensors, metadata), size)
        return True

    def _leave(self, path: str, text: Callable[[], bytes], data_bytes: int = 0) -> None:
        """Write a placeholder, unless the file is there with values from another run."""
        if os.path.exists(path) and path not in self._placeholders:
            return
        with open(path, "wb") as file:
            file.write(text())
            file.truncate(file.tell() + data_bytes)
        self._placeholders.add(path)

    def remove_placeholders(self) -> None:
        """Remove them, and folders that this run made for them: a later run would look for a checkpoint there."""
        for path in self._placeholders:
            if is_safetensors_placeholder(path) or placeholder_number(path) is not None:
                with suppress(OSError):
                    os.remove(path)
        for folder in reversed(self._folders):
            if any(path.startswith(folder + os.sep) for path in self._placeholders):
                with suppress(OSError):
                    os.rmdir(folder)

    def noting_folders(self, mkdir: Any) -> Any:
        def made(path: Any, *args: Any, **kwargs: Any) -> None:
            mkdir(path, *args, **kwargs)
            if not kwargs.get("dir_fd") and isinstance(path, str | bytes | os.PathLike):
                self._folders.append(os.path.abspath(os.fsdecode(path)))

        return made

    def renaming(self, rename: Any) -> Any:
        """Follow placeholders that the program renames."""

        def renamed(src: Any, dst: Any, **kwargs: Any) -> Any:
            if kwargs or not self._placeholders:
                return rename(src, dst, **kwargs)
            old, new = os.path.abspath(os.fsdecode(src)), os.path.abspath(os.fsdecode(dst))
            if old in self._placeholders:
                self._kept[new] = self._kept.get(old)
                if os.path.exists(new) and new not in self._placeholders:
                    # A file of values, from another run, is not lost for one that has none.
                    return os.remove(old)
            rename(src, dst)

            def moved(path: str) -> str:
                return new + path[len(old) :] if path == old or path.startswith(old + os.sep) else path

            self._placeholders = set(map(moved, self._placeholders))
            self._folders = list(map(moved, self._folders))

        return renamed

    def loaded(self, f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        found = self._load(f, map_location, *args, **kwargs)
        if not kwargs.get("mmap"):
            with without_functions():
                for tensor in _tensors_of(found):
                    self.host_memory.note_loaded(tensor)
        return found

    def _load(self, f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        with without_functions():
            path = path_of(f)
            if path in self._kept:
                return self._moved(self._kept[path], map_location, self._of_card)
            number = placeholder_number(f)
            if number is not None and number < len(self._numbered):
                return self._moved(self._numbered[number], map_location, self._of_card)
            if isinstance(f, str | os.PathLike) and kwargs.get("mmap") is None and zipfile.is_zipfile(f):
                kwargs["mmap"] = True
            if not (map_location is None or isinstance(map_location, dict) or self._means_card(map_location)):
                return self.load(f, map_location, *args, **kwargs)
            of_card: dict[int, int] = {}

            def to_host(storage: Any, location: str) -> Any:
                if location.startswith("cuda"):
                    of_card[getattr(storage, "_untyped_storage", storage)._cdata] = torch.device(location).index or 0
                return storage

            return self._moved(self.load(f, to_host, *args, **kwargs), map_location, of_card, copies=False)

    def _means_card(self, location: Any) -> bool:
        return self.devices.is_own(location, numbers=True)

    def _moved(self, obj: Any, location: Any, of_card: Mapping[int, int], *, copies: bool = True) -> Any:
        """Return what was saved where `torch.load` puts it: without a location, to the device it was saved from."""

        def placed(tensor: Tensor) -> Tensor:
            card, where = of_card.get(tensor.untyped_storage()._cdata), location
            if isinstance(location, dict):
                where = location.get("cpu" if card is None else f"cuda:{card}")
            if card is not None and where is None or where is not None and self._means_card(where):
                return tensor.to(self.devices.meta(card if where is None else where))
            return tensor.clone() if copies else tensor

        return _mapped(placed, obj)


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


def _mapped(change: Callable[[Tensor], Tensor], obj: Any) -> Any:
    """Return a copy of an object with other tensors; those that were one tensor stay one."""
    made: dict[Any, Tensor] = {}

    def changed(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()._cdata
        key = (storage, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype)
        if key not in made:
            made[key] = change(tensor)
        return made[key]

    def copied(value: Any) -> Any:
        if isinstance(value, Tensor):
            return changed(value)
        held = tensors_among([vars(module) for module in value.modules()])
        new: dict[int, Any] = {id(old): changed(old) for old in held}
        new |= {id(old): nn.Parameter(changed(old), old.requires_grad) for old in value.parameters()}
        return copy.deepcopy(value, new)

    return tree_map_only((Tensor, nn.Module), copied, obj)
