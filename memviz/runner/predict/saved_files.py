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
from memviz.runner.predict.torch_patches import Patches

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
        _safetensors(patches, files)
        yield
    finally:
        patches.undo()


def _safetensors(patches: Patches, files: SavedFiles) -> None:
    """Only where a program has it anyway."""
    try:
        import safetensors.torch as library
    except ImportError:
        return
    save = library.save_file

    def save_file(tensors: Any, filename: Any, *args: Any, **kwargs: Any) -> Any:
        if not files.keeps(tensors, filename):
            save(tensors, filename, *args, **kwargs)

    patches.replace(library, "save_file", save_file)


class SavedFiles:
    save: Callable[..., Any]
    load: Callable[..., Any]

    def __init__(self, host: Host, assumptions: Assumptions, named: NamedDevices) -> None:
        self._host = host
        self._assumptions = assumptions
        self._named = named
        self._kept: dict[Any, Any] = {}
        """By the file's path, or by the object that was written to."""

    def saved(self, obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        if self.keeps(obj, f):
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
                self._kept.pop(_key(f), None)
                return False
            self._assumptions.state(_NOT_WRITTEN)
            self._kept[_key(f)] = _as_on_host(obj)
            return True

    def loaded(self, f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        with _Plainly():
            if _key(f) in self._kept:
                return self._moved(self._kept[_key(f)], map_location)
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

        found = self.load(f, on_host, *args, **kwargs)
        if map_location is not None:
            return self._moved(found, map_location)
        return _mapped(lambda t: t.to(META) if t.untyped_storage()._cdata in were_there else t, found)

    def _means_card(self, location: Any) -> bool:
        return self._named.means_us(location, numbers=True)

    def _moved(self, obj: Any, location: Any) -> Any:
        if location is None or not self._means_card(location):
            return _mapped(lambda tensor: tensor.clone(), obj)
        return _mapped(lambda tensor: tensor.to(META), obj)


def _key(f: Any) -> Any:
    return os.path.abspath(f) if isinstance(f, str | os.PathLike) else id(f)


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
