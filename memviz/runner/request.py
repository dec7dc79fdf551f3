"""A request to the runner, as plain texts that travel between processes, files and the page, and its layout of GPUs."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from importlib.metadata import PackageNotFoundError, version
from math import prod
from typing import Any, Literal, get_args

from memviz.allocator.blocks import Platform
from memviz.allocator.context import DEFAULT_CARD
from memviz.allocator.settings import known_release
from memviz.errors import UsageError
from memviz.predictor.cards import memory_args
from memviz.text import nearest

MOST_GPUS = 4_096
GPUS = "gpus"


@dataclass(frozen=True)
class Parallel:
    """The product of all is the number of GPUs. Ranks are numbered along them, the last of these first."""

    pipeline: int = 1
    """Stages, each of some blocks."""
    data: int = 1
    """Whole copies, which sum their gradients."""
    shard: int = 1
    """Parts of weights, gradients and optimizer states, gathered block by block."""
    tensor: int = 1
    """Parts of each matrix and of the sequence between them."""

    @property
    def gpus(self) -> int:
        return prod(self.sizes.values())

    @property
    def sizes(self) -> dict[str, int]:
        """Axis sizes by name, as a device mesh takes them."""
        return {axis.name: getattr(self, axis.name) for axis in fields(self)}

    @property
    def used(self) -> dict[str, int]:
        """Only those along which there is more than one."""
        return {name: size for name, size in self.sizes.items() if size > 1}

    @property
    def words(self) -> str:
        """ "8 GPUs: 2 data x 4 shard"."""
        return f"{self.gpus:,} GPUs: {self.parts}" if self.parts else "1 GPU"

    @property
    def parts(self) -> str:
        """ "2 data x 4 shard"."""
        return " x ".join(f"{size} {name}" for name, size in self.used.items())

    @property
    def as_texts(self) -> dict[str, str]:
        return {name: str(size) for name, size in self.used.items()}


ALONE = Parallel()
AXES = tuple(ALONE.sizes)


def parallel_of(texts: Mapping[str, str]) -> Parallel:
    """Parse the axes. With `gpus` and no `shard`, weights are sharded over the GPUs that other axes leave."""
    names = (GPUS, *AXES)
    for name in texts:
        if name not in names:
            raise UsageError(f"GPUs are parted along {', '.join(AXES)}; there is no {name}.{nearest(name, names)}")
    sizes = {}
    for name, text in texts.items():
        if text.strip() and (not text.strip().isdecimal() or not 1 <= int(text) <= MOST_GPUS):
            raise UsageError(f"{name} is a whole number from 1 to {MOST_GPUS:,}, not {text.strip()[:20]}.")
        if text.strip():
            sizes[name] = int(text)
    gpus = sizes.pop(GPUS, None)
    others = prod(size for name, size in sizes.items() if name != "shard")
    if gpus is not None and "shard" not in sizes and gpus % others == 0:
        sizes["shard"] = gpus // others
    parallel = Parallel(**sizes)
    if gpus is not None and parallel.gpus != gpus:
        value = " x ".join(f"{size} {name}" for name, size in sizes.items())
        remedy = "give axes whose product it is" if "shard" in sizes else f"{others} must divide it"
        raise UsageError(f"gpus is {gpus}, and {value} are {parallel.gpus}: {remedy}.")
    if parallel.gpus > MOST_GPUS:
        raise UsageError(f"These would be {parallel.gpus:,} GPUs; {MOST_GPUS:,} are the most.")
    return parallel


On = Literal["auto", "predict", "cuda"]
Optimizer = Literal["none", "sgd", "adamw", "adamw-fused", "adamw-for-loop"]
Load = Literal["host", "device"]
_LOAD_OF_CONVERSION: Mapping[str, Load] = {"before": "host", "on-host": "host", "measured": "device"}
"""`conversion` is the older spelling of `load`, in command lines, links and files."""

_OLDEST, _NEWEST = (2, 0), (2, 13)
"""Whose choices of kernels are known: PyTorch's sources were read so far."""
ALLOCATOR_SETTINGS = "allocator_settings"
"""Name of the optimization that must be set before CUDA starts, and that a prediction replays."""


def release_of(text: str) -> tuple[int, int] | None:
    """'2.6' as (2, 6); nothing is the installed one."""
    return known_release(text, _OLDEST, _NEWEST) if text else None


def load_of(conversion: str) -> Load:
    """Return the value of `load`. An unknown text stays, and a request refuses it."""
    return _LOAD_OF_CONVERSION.get(conversion, conversion)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Request:
    """One run. Knobs are texts here; `Plan` reads and checks them."""

    workload: str
    """One of ours by name, a config.json, or a Python file of the user's."""
    settings: Mapping[str, str] = field(default_factory=dict)
    optimizations: tuple[tuple[str, Mapping[str, str]], ...] = ()
    on: On = "predict"
    card: str = DEFAULT_CARD
    optimizer: Optimizer = "none"
    """With none, gradients are never cleared and add up, as in the seed of checkpointing."""
    warmup: int = 1
    steps: int = 1
    load: Load = "host"
    """Device on which weights are cast, quantized or offloaded. With `device`, all of them are on the card before,
    as they were, and that counts towards the peak like everything else."""
    keep_output: bool = False
    """Keep the warm-up's output alive during the steps, as in the seed of the split feed-forward."""
    numerics: bool = True
    torch: str = ""
    """Torch release whose kernels a prediction follows, as in 2.6; empty for the installed one."""
    platform: Platform = "linux"
    """Operating system whose driver orders the addresses of segments."""
    config: str = ""
    """Text of the config.json that `workload` names; empty for every other workload."""
    parallel: Mapping[str, str] = field(default_factory=dict)
    """GPUs and axes of a prediction, as in {"gpus": "8", "tensor": "2"}; empty for one GPU."""
    label: str = ""
    """Title of this variant; made from the optimizations where empty."""

    def __post_init__(self) -> None:
        for name, kind in (("on", On), ("optimizer", Optimizer), ("load", Load), ("platform", Platform)):
            if getattr(self, name) not in get_args(kind):
                raise UsageError(f"{name} is one of {', '.join(get_args(kind))}; not {getattr(self, name)}.")
        release_of(self.torch)
        if not 0 <= self.warmup <= 100 or not 1 <= self.steps <= 100:
            raise UsageError("A run has 0 to 100 warm-up steps and 1 to 100 steps.")

    @property
    def release(self) -> tuple[int, int] | None:
        return release_of(self.torch)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "conversion": "on-host" if self.load == "host" else "measured"}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Request:
        values = {attribute.name: value[attribute.name] for attribute in fields(cls) if attribute.name in value}
        pairs = tuple((name, dict(knobs)) for name, knobs in values.pop("optimizations", ()))
        return cls(**{"load": load_of(value.get("conversion", "before")), **values, "optimizations": pairs})


def library_versions() -> dict[str, str]:
    """Installed releases of the libraries that models are built with."""
    releases = {}
    for name in ("torch", "diffusers", "transformers"):
        with suppress(PackageNotFoundError):
            releases[name] = version(name)
    return releases


def command_of(request: Request) -> str:
    """Return the command line of the same run."""
    arguments = ["python", "-m", "memviz", "run", request.workload]
    for key, text in request.settings.items():
        arguments += ["--set", f"{key}={text}"]
    for name, knobs in request.optimizations:
        pairs = ",".join(f"{key}={text}" for key, text in knobs.items())
        arguments += ["--with", f"{name}:{pairs}" if pairs else name]
    arguments += ["--on", request.on]
    if request.on != "cuda":
        arguments += memory_args(request.card)
    # Whether a step fits depends on the optimizer, so it is named even where it is the usual one.
    arguments += ["--optimizer", request.optimizer]
    for flag in ("warmup", "steps", "load", "torch", "platform"):
        if getattr(request, flag) != getattr(Request, flag):
            arguments += [f"--{flag}", str(getattr(request, flag))]
    for key, text in request.parallel.items():
        arguments += ["--gpus", text] if key == GPUS else ["--parallel", f"{key}={text}"]
    arguments += ["--keep-output"] if request.keep_output else []
    arguments += [] if request.numerics else ["--no-numerics"]
    return shlex.join(arguments)
