"""`torch.save` and `torch.load` where nobody computes the values.

A file of zeros in the place of a checkpoint would be worse than none, so what holds values that are not computed is
not written; the program finds it again when it loads that file. Files that are there are read, large tensors of them
only where they are looked at.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from memviz.runner.predict.assumptions import Assumptions
from memviz.runner.predict.host import Host
from memviz.runner.predict.named_devices import CUDA_0, META, NamedDevices
from memviz.runner.predict.saved_tensors import follow_safetensors, path_of
from memviz.runner.predict.torch_patches import Patches
from memviz.runner.predict.unwritten_files import UnwrittenFiles, number_in, text_of

_Plainly = torch._C.DisableTorchFunction
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
        """By the file's path."""
        self._numbered: list[Any] = []
        """The same, and what was written to open files, by the number in the text that stands there instead."""
        self.unwritten = UnwrittenFiles(self._kept)

    def saved(self, obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        if self.keeps(obj, f):
            number = len(self._numbered) - 1
            if (path := path_of(f)) is not None:
                self.unwritten.leave_text(path, number)
            else:
                f.write(text_of(number))
            return
        of_card: set[int] = set()

        def with_values(tensor: Tensor) -> Tensor:
            if not tensor.is_meta:
                return tensor
            values = tensor.detach().to("cpu")
            of_card.add(values.untyped_storage()._cdata)
            return values

        if not isinstance(obj, nn.Module):
            with _Plainly():
                obj = _mapped(with_values, obj)
        patches = Patches()
        where = torch.serialization.location_tag
        patches.replace(torch.serialization, "location_tag", lambda s: str(CUDA_0) if s._cdata in of_card else where(s))
        try:
            self.save(obj, f, *args, **kwargs)
        finally:
            patches.undo()

    def keeps(self, obj: Any, f: Any) -> bool:
        """What holds values that nobody computes, as it will be found again."""
        with _Plainly():
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
        with _Plainly():
            path = path_of(f)
            if path in self._kept:
                return self._moved(self._kept[path], map_location)
            number = number_in(f)
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
