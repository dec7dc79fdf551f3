"""Private names of torch that are pretended: torch calls those functions, and what is missing is refused."""

from functools import cache
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import torch

from memviz.errors import UsageError
from memviz.predictor.compat import Patches, required
from memviz.predictor.modes import pretended_functions

PRETENDED = set(pretended_functions(*(MagicMock() for _ in range(5))))
OF_OTHER_RELEASES = {
    *("_cuda_lock_mutex", "_cuda_unlock_mutex", "_cuda_hasPrimaryContext", "_accelerator_deviceCount"),
    *("_cuda_cudaCachingAllocator_set_allocator_settings", "_cuda_endAllocateCurrentStreamToPool"),
    "_cuda_attach_out_of_memory_observer",
}
"""Pretended functions that the Python of torch 2.13 does not name."""


@cache
def python_of_torch() -> str:
    root = Path(torch.__file__).parent
    folders = ("", "_C", "accelerator", "backends/cuda", "backends/cudnn", "cuda", "utils")
    paths = [path for folder in folders for path in (root / folder).glob("*.py*") if path.suffix in (".py", ".pyi")]
    return "".join(path.read_text(encoding="utf-8") for path in paths)


@pytest.mark.skipif(torch.__version__ < "2.13", reason="older releases call fewer")
@pytest.mark.parametrize("name", sorted(PRETENDED - OF_OTHER_RELEASES))
def test_torch_calls_the_pretended_function(name: str) -> None:
    assert name in python_of_torch()


def test_a_release_without_a_required_name_is_refused() -> None:
    with pytest.raises(UsageError, match="use a release from 2.6 to 2.13"):
        required(torch._C, "_no_such_function")


def test_patches_are_taken_back_in_reverse() -> None:
    class Owner:
        there = 1

    with Patches() as patches:
        patches.put(Owner, "there", 2)
        patches.put(Owner, "there", 3)
        patches.put(Owner, "added", 4)
        assert patches.replace(Owner, "missing", 5) is None
        assert vars(Owner)["there"] == 3 and vars(Owner)["added"] == 4
    assert Owner.there == 1 and not hasattr(Owner, "added") and not hasattr(Owner, "missing")
