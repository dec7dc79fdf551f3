"""The recorded GPU, detected without starting its driver, and the reason if there is none."""

import importlib
from types import SimpleNamespace
from typing import Any

import pytest

from memviz.errors import UsageError
from memviz.runner.measure.accelerator import find_accelerator

MEMORY = SimpleNamespace(_record_memory_history=None, _snapshot=None)


def started() -> bool:
    raise AssertionError("the driver was started")


def torch_with(monkeypatch: pytest.MonkeyPatch, *, version: dict[str, Any] | None = None, **devices: Any) -> None:
    """Torch with these devices, in place of the real one."""
    found = {"cuda": None, "hip": None, **(version or {})}
    absent = SimpleNamespace(is_available=lambda: False, memory=SimpleNamespace())
    torch = SimpleNamespace(
        __version__="2.13.0",
        version=SimpleNamespace(**found),
        _C=SimpleNamespace(_cuda_attach_out_of_memory_observer=print),
        **{"cuda": absent, "xpu": absent, **devices},
    )
    monkeypatch.setattr(importlib, "import_module", {"torch": torch}.__getitem__)


def test_a_card_that_the_driver_lists_is_taken_without_starting_it(monkeypatch):
    cuda = SimpleNamespace(_device_count_nvml=lambda: 2, is_available=started, memory=MEMORY)
    torch_with(monkeypatch, version={"cuda": "13.0"}, cuda=cuda)
    found = find_accelerator()
    assert (found.kind, found.api, found.attach_observer) == ("cuda", cuda, print)
    assert found.versions == (("torch", "2.13.0"), ("cuda", "13.0"))


def test_where_nothing_lists_cards_torch_is_asked(monkeypatch):
    cuda = SimpleNamespace(_device_count_nvml=lambda: -1, is_available=lambda: True, memory=MEMORY)
    torch_with(monkeypatch, version={"cuda": "13.0"}, cuda=cuda)
    assert find_accelerator().kind == "cuda"


def test_an_intel_gpu_is_taken_where_torch_records_it(monkeypatch):
    xpu = SimpleNamespace(is_available=lambda: True, memory=MEMORY)
    torch_with(monkeypatch, xpu=xpu)
    assert (find_accelerator().kind, find_accelerator().attach_observer) == ("xpu", None)


def test_an_intel_gpu_without_a_history_is_none(monkeypatch):
    torch_with(monkeypatch, xpu=SimpleNamespace(is_available=lambda: True, memory=SimpleNamespace()))
    with pytest.raises(UsageError, match="built without CUDA"):
        find_accelerator()


def test_no_card_says_where_to_look(monkeypatch):
    cuda = SimpleNamespace(_device_count_nvml=lambda: 0, is_available=started, memory=MEMORY)
    torch_with(monkeypatch, version={"cuda": "13.0"}, cuda=cuda)
    with pytest.raises(UsageError, match="CUDA_VISIBLE_DEVICES.*`python -m memviz run` predicts"):
        find_accelerator()


def test_without_torch_the_remedy_is_another_python(monkeypatch):
    def absent(name: str) -> Any:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(UsageError, match="Run memviz with the Python of your script"):
        find_accelerator()
