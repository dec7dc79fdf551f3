"""Allocator settings: how PyTorch's caching allocator asks the card for memory and cuts it up.

`expandable_segments:True` lets a segment grow where it lies instead of asking for another of the right size, and so
takes most of what is reserved and not used. What is live does not change, and no number that is computed does.

The settings are read from the environment once, when CUDA starts. So nothing is done to the model here: the caller
sets `environment` before the process starts, and `apply` says so where that was forgotten.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import nn

_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""In the order in which PyTorch looks for them. The second only if it was built for AMD, the third from 2.9 on."""
_OPTION = re.compile(r"[a-z0-9_]+:(?:\[[^\[\]]*\]|[^,\[\]]+)")
_SEPARATE = re.compile(r",(?![^\[]*\])")


@dataclass(frozen=True)
class AllocatorSettings:
    """`os.environ.update(AllocatorSettings().environment)` as the first thing that a script does."""

    conf: str = field(
        default="expandable_segments:True",
        metadata={
            "help": "options as in PYTORCH_CUDA_ALLOC_CONF: name:value, separated by commas",
            "says": "{}",
            "always": True,
        },
    )

    name: ClassVar[str] = "allocator_settings"
    title: ClassVar[str] = "Allocator settings"
    sentence: ClassVar[str] = "Expandable segments, split limits, rounding (PYTORCH_CUDA_ALLOC_CONF)."
    not_with: ClassVar[Mapping[str, str]] = {}
    claim: ClassVar[Literal["bitwise"]] = "bitwise"
    """Outputs stay bitwise equal: an address is no input of any kernel."""
    needs: ClassVar[Literal["any", "training", "inference"]] = "any"

    def __post_init__(self) -> None:
        unclear = next((option for option in _options(self.conf) if not _OPTION.fullmatch(option)), None)
        if not self.conf.strip() or unclear is not None:
            raise ValueError(
                f"{unclear or self.conf!r} is not an allocator option. Write name:value, separated by commas, such as "
                "expandable_segments:True,garbage_collection_threshold:0.8."
            )

    @property
    def environment(self) -> Mapping[str, str]:
        return dict.fromkeys(_VARIABLES, self.conf)

    def check(self, model: nn.Module, *, training: bool) -> None:
        """Any model will do."""

    def apply(self, model: nn.Module) -> Callable[[], None]:
        if torch.cuda.is_available() and _options(_in_force()) != _options(self.conf):
            raise ValueError(
                f"This process has the allocator settings {_in_force()!r}, which cannot change after CUDA has started. "
                f"Start Python with {_VARIABLES[0]}={self.conf}."
            )
        return lambda: None


def _options(conf: str) -> list[str]:
    return [part for part in _SEPARATE.split(re.sub(r"\s+", "", conf)) if part]


def _in_force() -> str:
    """Return the settings that the allocator has read, or will read when CUDA starts."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        recorded = torch.cuda.memory._snapshot().get("allocator_settings", {})
        return str(next((recorded[name] for name in _VARIABLES if name in recorded), ""))
    return next((os.environ[name] for name in _variables_read() if name in os.environ), "")


def _variables_read() -> list[str]:
    """Those of the variables that this PyTorch reads."""
    cuda, hip, general = _VARIABLES
    release = tuple(int(digits) for digits in re.findall(r"\d+", torch.__version__)[:2])
    return [cuda, *([hip] if torch.version.hip else []), *([general] if release >= (2, 9) else [])]
