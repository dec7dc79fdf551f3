"""Saved files where values are not computed: `torch.save`, `torch.load` and safetensors.

A checkpoint of zeros would be worse than none, so a file of tensors without values is kept apart (outputs.py). It is
torch's own file with holes in their place, and says so where it names their devices; of safetensors it is the header.
torch itself refuses such a file. In one that is saved to memory they take no bytes. Large tensors of existing files are
read only when the program reads them.
"""

from __future__ import annotations

import copy
import io
import json
import os
import struct
import sys
import zipfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from tempfile import NamedTemporaryFile, TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from memviz.predictor.assumptions import unknown_number
from memviz.predictor.compat import Patches, without_functions, without_modes
from memviz.predictor.cuda.machine import NamedDevices
from memviz.predictor.known_values import ByStorage
from memviz.predictor.outputs import OutputFolder, copy_with_holes, outputs_in_use
from memviz.predictor.recorder import AllocationRecorder
from memviz.predictor.shapes import tensors_among

_PLACEHOLDER_KEY = "values that nobody computed"
_UNKNOWN_ON = "memviz predict, without values, on "
"""Before the device of a storage in a file."""
_NO_BYTES = ".memviz"
"""Record of a file in which storages without values take no bytes."""
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
        if any(files.keep_tensors(tensors, filename, metadata) for files in _files_in_use):
            return
        outputs = outputs_in_use()
        save(tensors, outputs and outputs.path_to_write(filename, copy=False) or filename, metadata, *args, **kwargs)

    def safe_open(filename: Any, framework: Any = "pt", device: Any = "cpu", **kwargs: Any) -> Any:
        files = _files_in_use[0] if _files_in_use else None
        filename = filename if files is None else files.real_path(filename)
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
    """Return the path of a file, or of one that is open at its begin."""
    if isinstance(file, str | os.PathLike):
        return os.path.abspath(os.fsdecode(file))
    is_file = isinstance(file, io.BufferedIOBase) and isinstance(getattr(file, "name", None), str)
    return os.path.abspath(file.name) if is_file and file.seekable() and file.tell() == 0 else None


NOT_WRITTEN = (
    "values that are not computed were not written to a file; loading it in a prediction restores their shapes"
)


def follow_files(patches: Patches, recorder: AllocationRecorder, devices: NamedDevices) -> None:
    outputs = outputs_in_use()
    if outputs is None:
        folder = patches.enter_context(TemporaryDirectory(prefix="memviz-outputs-"))
        outputs = patches.enter_context(OutputFolder(folder, everything=False))
    files = SavedFiles(recorder, devices, outputs)
    files.save = patches.replace(torch, "save", files.saved)
    files.load = patches.replace(torch, "load", files.loaded)
    for name in ("save", "load"):
        patches.replace(torch.serialization, name, getattr(torch, name))
    _follow_safetensors(patches, files)
    patches.callback(files.remove_placeholders)


class _WithHoles:
    """Writer of torch's files that leaves out the storages whose values are not known."""

    def __init__(self, writer: Any, is_unknown: Callable[[Any], bool], *, has_holes: bool) -> None:
        self._writer = writer
        self._is_unknown = is_unknown
        self._has_holes = has_holes
        if not has_holes:
            writer.write_record(_NO_BYTES, "1", 1)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)

    def write_record(self, name: str, data: Any, size: int) -> None:
        if not isinstance(data, torch.UntypedStorage) or not self._is_unknown(data):
            self._writer.write_record(name, data, size)
        elif self._has_holes:
            self._writer.write_record_metadata(name, size)
        else:
            self._writer.write_record(name, b"", 0)


class _WithoutBytes:
    """Reader of torch's files, with empty memory for storages that take no bytes there."""

    def __init__(self, reader: Any, blank: Callable[[int], Tensor]) -> None:
        self._reader = reader
        self._blank = blank

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    def get_storage_from_record(self, name: str, size: int, kind: Any) -> Tensor:
        try:
            tensor: Tensor = self._reader.get_storage_from_record(name, size, kind)
        except RuntimeError:
            # torch compares the sizes; releases that do not leave it to `to_host`.
            return self._blank(size)
        return tensor


class SavedFiles:
    """Files without values that the program saved."""

    save: Callable[..., Any]
    load: Callable[..., Any]

    def __init__(self, recorder: AllocationRecorder, devices: NamedDevices, outputs: OutputFolder) -> None:
        self.host = recorder.host
        self.host_memory = recorder.host_memory
        self._card_of = recorder.card_of
        self.devices = devices
        self._assumptions = recorder.assumptions
        self._outputs = outputs
        self._of_card = ByStorage[int]()
        """Cards of the storages of saved tensors that were on one."""
        self._placeholders: set[str] = set()
        """Files without values in their real place, as the program itself opened them."""

    def real_path(self, file: Any) -> Any:
        """Return the real path of a file, for code in C."""
        return self._outputs.kept_copy(file) or file if isinstance(file, str | os.PathLike) else file

    def saved(self, obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        with without_functions():
            is_unknown = any(map(self.host.is_unknown, tensors_among(obj, _DEEPEST, with_owners=True)))
            obj = _with_tensors_mapped(self._on_host, obj)
        path = path_of(f)
        if is_unknown:
            self._assumptions.state(NOT_WRITTEN)
        if path is None or not (is_unknown or isinstance(f, str | os.PathLike)):
            return self._write(obj, f, *args, **kwargs)
        if isinstance(f, str | os.PathLike):
            twin = self._outputs.path_to_write(path, copy=False, always=is_unknown)
            return self._write(obj, twin or f, *args, **kwargs)
        if self._outputs.kept_copy(path) is None:
            # The program has truncated it already, so it is removed in any case.
            self._placeholders.add(path)
        with NamedTemporaryFile() as whole:
            self._write(obj, whole.name, *args, **kwargs)
            return copy_with_holes(whole.name, f)

    def _write(self, obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        write, tag = vars(torch.serialization)["_save"], torch.serialization.location_tag

        def location(storage: Any) -> str:
            card = self._of_card.of(_bytes_of_storage(storage))
            device = tag(storage) if card is None else f"cuda:{card}"
            return f"{_UNKNOWN_ON}{device}" if self._has_no_values(storage) else device

        with Patches() as patches:
            patches.replace(torch.serialization, "location_tag", location)
            has_holes = isinstance(f, str | os.PathLike)

            def save(obj: Any, file: Any, *more: Any) -> None:
                write(obj, _WithHoles(file, self._has_no_values, has_holes=has_holes), *more)

            patches.replace(torch.serialization, "_save", save)
            patches.put(self.host, "to_file", self._on_host)
            self.save(obj, f, *args, **kwargs)

    def _has_no_values(self, storage: Any) -> bool:
        return self.host.is_unknown(_bytes_of_storage(storage))

    def _on_host(self, tensor: Tensor) -> Tensor:
        if not tensor.is_meta:
            return tensor
        copied = tensor.detach().to("cpu")
        self._of_card.put(copied, self._card_of(tensor) or 0)
        # In a real run it is on the host only until it is written.
        self.host_memory.forget(copied)
        return copied

    def keep_tensors(self, tensors: Any, f: Any, metadata: Any) -> bool:
        with without_functions():
            if not any(map(self.host.is_unknown, tensors_among(tensors, _DEEPEST, with_owners=True))):
                return False
        self._assumptions.state(NOT_WRITTEN)
        with open(self._outputs.path_to_write(f, copy=False, always=True) or f, "wb") as file:
            file.write(_safetensors_header(tensors, metadata))
            file.truncate(file.tell() + sum(tensor.nbytes for tensor in tensors.values()))
        return True

    def remove_placeholders(self) -> None:
        for path in self._placeholders:
            with suppress(OSError):
                os.remove(path)

    def loaded(self, f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        found = self._load(f, map_location, *args, **kwargs)
        if not kwargs.get("mmap"):
            with without_functions():
                for tensor in tensors_among(found, _DEEPEST, with_owners=True):
                    self.host_memory.note_loaded(tensor)
        return found

    def _load(self, f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        with without_functions():
            if (path := path_of(f)) is not None and zipfile.is_zipfile(path):
                f = self.real_path(path)
                with zipfile.ZipFile(path) as archive:
                    has_holes = not any(name.endswith(_NO_BYTES) for name in archive.namelist())
                kwargs["mmap"] = has_holes and kwargs.get("mmap") is not False
            of_card = ByStorage[int]()

            def to_host(storage: Any, location: str) -> Any:
                whole = getattr(storage, "_untyped_storage", storage)
                if location.startswith(_UNKNOWN_ON):
                    location = location.removeprefix(_UNKNOWN_ON)
                    whole = storage = self._blank(whole.nbytes()).untyped_storage()
                if callable(map_location) and (moved := map_location(storage, location)) is not None:
                    return moved
                if location.startswith("cuda"):
                    of_card.put(_bytes_of_storage(whole), torch.device(location).index or 0)
                return storage

            read = vars(torch.serialization)["_load"]
            with Patches() as patches, torch.serialization.safe_globals([unknown_number]):
                load = lambda file, *more, **named: read(_WithoutBytes(file, self._blank), *more, **named)  # noqa: E731
                patches.replace(torch.serialization, "_load", load)
                done = self.load(f, to_host, *args, **kwargs)
            if not callable(map_location):
                return self._moved(done, map_location, of_card)
            # Where it returned None, torch restores to the device that it was saved from.
            return self._moved(done, None, of_card) if len(of_card) else done

    def _blank(self, size: int) -> Tensor:
        with without_modes():
            return self.host.blank_like(torch.empty(size, dtype=torch.uint8, device="meta"))

    def _moved(self, obj: Any, location: Any, of_card: ByStorage[int]) -> Any:
        """Return what was saved where `torch.load` puts it: without a location, to the device it was saved from."""

        def placed(tensor: Tensor) -> Tensor:
            card, where = of_card.of(tensor), location
            if isinstance(location, dict):
                where = location.get("cpu" if card is None else f"cuda:{card}")
            if card is not None and where is None or where is not None and self.devices.is_own(where, numbers=True):
                return tensor.to(self.devices.meta(card if where is None else where))
            return tensor

        return _with_tensors_mapped(placed, obj)


_DEEPEST = 64
"""Containers in a file may be nested this deep."""


def _bytes_of_storage(storage: Any) -> Tensor:
    with without_functions(), without_modes():
        return torch.empty(0, dtype=torch.uint8).set_(getattr(storage, "_untyped_storage", storage))


def _with_tensors_mapped(change: Callable[[Tensor], Tensor], obj: Any) -> Any:
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
        held = tensors_among([vars(module) for module in nn.Module.modules(value)])
        new: dict[int, Any] = {id(old): changed(old) for old in held}
        new |= {id(old): nn.Parameter(changed(old), old.requires_grad) for old in nn.Module.parameters(value)}
        return copy.deepcopy(value, new)

    return tree_map_only((Tensor, nn.Module), copied, obj)
