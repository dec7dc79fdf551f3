"""A request to the runner as plain texts, with its layout of GPUs; and its answer, a run kept as one snapshot file.

Texts set knobs: the fields of a frozen dataclass, as workloads and optimizations are. A field's metadata describes it
(`help`, `choices`, `unit`) for the command line, the page and errors alike; the values that it accepts follow from its
annotation: int, float, bool, str, one of them or None, or a Literal. A field marked `python_only` takes no text.
"""

from __future__ import annotations

import json
import re
import shlex
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, Field, asdict, dataclass, field, fields, replace
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from math import prod
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from memviz.allocator.blocks import Platform
from memviz.allocator.context import DEFAULT_CARD, context_on
from memviz.allocator.settings import parse_release
from memviz.errors import TraceError, UsageError
from memviz.predictor.cards import memory_args
from memviz.predictor.expected_error import ExpectedError, Fit
from memviz.predictor.group.ranks import CARDS_OF_A_MACHINE
from memviz.text import nearest
from memviz.trace.load import load_trace
from memviz.trace.model import Trace
from memviz.trace.write import replacing, write_pickle
from memviz.units import count_text, duration_text, parse_bytes, work_text

T = TypeVar("T")

_YES = {"true", "yes", "on", "1"}
_NO = {"false", "no", "off", "0"}
KnobType = Literal["int", "float", "bool", "text"]
_TYPES: Mapping[KnobType, type] = {"int": int, "float": float, "bool": bool, "text": str}
_MOST = 1 << 40
"""Limit of whole numbers: larger ones overflow within torch, whose error names no knob."""
_BETWEEN_SIDES = re.compile(r"\s*[x×]\s*", re.IGNORECASE)


@dataclass(frozen=True)
class Knob:
    """One knob as `--list` and the page's form show it."""

    name: str
    type: KnobType
    optional: bool
    """True if `none` is a valid value."""
    default: Any
    """A plain value; on an instance, the value that it has."""
    help: str
    choices: tuple[Any, ...]
    """Empty where any value of the type may be tried."""
    unit: str
    says: str = ""
    """Label of a run with this value, as in `every {nth} block`; empty for name and value."""
    always: bool = False
    """Show the label for the default value too: the title alone is ambiguous."""

    def read(self, text: str) -> Any:
        """Read a value; the caller puts the knob's name in front of a ValueError."""
        text = text.strip()
        if self.optional and text.lower() in ("none", ""):
            return None
        value = read_value(_TYPES[self.type], text)
        if self.type == "int" and abs(value) > _MOST:
            raise ValueError(f"is {text}; the maximum is {_MOST:,}.")
        if self.choices and value not in self.choices:
            raise ValueError(f"cannot be {text}.{nearest(text, self.choices)}")
        return value


def knob(
    default: Any,
    help: str,
    *,
    choices: tuple[Any, ...] = (),
    unit: str = "",
    least: float | None = None,
    last: bool = False,
) -> Any:
    """Return a dataclass field with its help. `least` is the smallest value that makes sense.

    `last` is for fields of a base class: they are listed after the knobs of the subclass.
    """
    metadata = {"help": help, "choices": choices, "unit": unit, "least": least, "last": last}
    return field(default=default, metadata=metadata)


def least_value_of_knob(of: Any, name: str) -> int:
    """The smallest value of a knob that makes sense."""
    (least,) = (knob.metadata.get("least") for knob in fields(of) if knob.name == name)
    return 1 if least is None else int(least)


def knobs_of(of: Any) -> tuple[Knob, ...]:
    """The knobs of a class, or of an instance with its values as the defaults."""
    if isinstance(of, type):
        return _knobs(of)
    return tuple(replace(knob, default=getattr(of, knob.name)) for knob in _knobs(type(of)))


def _find_knobs(kind: type) -> tuple[Knob, ...]:
    hints, knobs = get_type_hints(kind), []
    for knob_field in _knob_fields(kind):
        hint, about = hints[knob_field.name], knob_field.metadata
        members = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
        solid = next(member for member in members if member is not type(None))
        listed = get_args(solid) if get_origin(solid) is Literal else ()
        accepted = type(listed[0]) if listed else solid
        word = next(word for word, type_ in _TYPES.items() if type_ is accepted or word == "text")
        factory = knob_field.default_factory
        default = factory() if factory is not MISSING else knob_field.default
        choices = tuple(about.get("choices", ())) or listed
        texts = (about.get("unit", ""), about.get("says", ""), about.get("always", False))
        optional = type(None) in members
        knobs.append(Knob(knob_field.name, word, optional, default, about.get("help", ""), choices, *texts))
    return tuple(knobs)


_knobs: Callable[[Any], tuple[Knob, ...]] = lru_cache(maxsize=128)(_find_knobs)
"""Cached, since a search plans thousands of runs, and `get_type_hints` evaluates every annotation anew."""


def with_knobs(kind: type[T], pairs: Mapping[str, str]) -> T:
    """Return an instance with these knobs; `resolution=512x768` sets two at once where the class joins them."""
    name = str(getattr(kind, "name", kind.__name__))
    turnable = {knob.name: knob for knob in _knobs(kind)}
    values = {}
    for key, text in _split_joined_knobs(kind, name, pairs).items():
        if key not in turnable:
            raise UsageError(f"{name} has no knob {key}.{nearest(key, [*turnable, *_joined_knobs(kind)])}")
        try:
            values[key] = turnable[key].read(text)
        except ValueError as error:
            raise UsageError(f"{name}: {key} {error}") from None
    try:
        return kind(**values)
    except (ValueError, UsageError) as error:
        raise UsageError(f"{name}: {error}") from None


def as_text(of: Any, *, everything: bool = False) -> dict[str, str]:
    """Return the texts that `with_knobs` reads back: of knobs that differ from their default, or of all."""
    values = ((knob, getattr(of, knob.name)) for knob in _knobs(type(of)))
    return {knob.name: knob_text(value) for knob, value in values if everything or value != knob.default}


MOST_NAMED = 2
"""Optimizations in a headline; the table and the command name all."""


def label_of_value(name: str, text: str, says: str = "") -> str:
    """`every 2nd block`, where `says` is "every {nth} block"; else its name and value."""
    if says:
        return " ".join(says.format(text, nth=_nth(text)).split())
    return f"{name.replace('_', ' ')} {text}"


def _nth(text: str) -> str:
    """2nd of 2, and nothing of 1: "every block" says it."""
    if not text.isdecimal() or text == "1":
        return "" if text == "1" else text
    ending = "th" if text[-2:-1] == "1" else {"1": "st", "2": "nd", "3": "rd"}.get(text[-1], "th")
    return f"{text}{ending}"


def parse_name_and_knobs(text: str) -> tuple[str, dict[str, str]]:
    """Parse `checkpointing:every=2,offload=true`. A piece without `=` continues the value before it."""
    name, _, rest = text.partition(":")
    if not name.strip():
        raise UsageError(f"Write NAME or NAME:KNOB=VALUE,KNOB=VALUE; {text!r} has no name.")
    if "=" in name:
        title, _, value = name.partition("=")
        raise UsageError(f"Write {title.strip()}:KNOB={value.strip()} to set a knob of it.")
    pairs: dict[str, str] = {}
    last = ""
    for piece in rest.split(",") if rest.strip() else ():
        key, equals, value = piece.partition("=")
        if equals and key.strip() in pairs:
            raise UsageError(f"{name.strip()}: {key.strip()} is given more than once.")
        if equals:
            last = key.strip()
            pairs[last] = value.strip()
        elif last:
            pairs[last] += f",{piece.strip()}"
        else:
            raise UsageError(f"{name.strip()}: {piece.strip()!r} has no value; write KNOB=VALUE.")
    return name.strip(), pairs


def check_knobs(of: Any) -> None:
    """Refuse a value that is not among the choices, or below the least; for `__post_init__`."""
    kind = type(of)
    for knob, knob_field in zip(_knobs(kind), _knob_fields(kind), strict=True):
        value, least = getattr(of, knob.name), knob_field.metadata.get("least")
        if knob.choices and value not in knob.choices and value is not None:
            raise UsageError(f"{knob.name} cannot be {value}.{nearest(value, knob.choices)}")
        if least is not None and value is not None and value < least:
            raise UsageError(f"{knob.name} is {value}; the minimum is {least}.")


def read_value(kind: type, text: str) -> Any:
    """Read an int, float, bool or str; the text of a ValueError follows the knob's name."""
    if kind is bool:
        if text.lower() not in _YES | _NO:
            raise ValueError(f"must be true or false (yes, no, on, off), not {text!r}.")
        return text.lower() in _YES
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            expected = "a whole number" if kind is int else "a number"
            raise ValueError(f"is {expected}, as in {'16 or 1_000' if kind is int else '0.1'}; not {text!r}.") from None
    return text


def _split_joined_knobs(kind: type, name: str, pairs: Mapping[str, str]) -> dict[str, str]:
    """Replace joined knobs, such as `resolution`, by their single knobs."""
    knobs: dict[str, str] = {}
    single_knobs = {knob.name: knob for knob in _knobs(kind)}
    choices = single_knobs["by"].choices if "by" in single_knobs else ()
    for key, text in pairs.items():
        # `by` is the older name where it chooses between this project's torch code and a library's.
        if key == "implementation" and "torch" in choices:
            key, text = "by", dict(zip(("memviz", "library"), choices, strict=False)).get(text.strip(), text)
        singles = _joined_knobs(kind).get(key, (key,))
        values = _BETWEEN_SIDES.split(text.strip()) if key in _joined_knobs(kind) else [text]
        if len(values) != len(singles):
            example = "x".join(knob_text(single_knobs[single].default) for single in singles)
            raise UsageError(f"{name}: {key} is {' x '.join(singles)}, as in {example}; not {text!r}.")
        for single, value in zip(singles, values, strict=True):
            if single in knobs:
                raise UsageError(f"{name}: {single} is given more than once.")
            knobs[single] = value
    return knobs


def _joined_knobs(kind: type) -> Mapping[str, tuple[str, ...]]:
    """Return the joined knobs of a class, as `resolution` for height and width."""
    joined: Mapping[str, tuple[str, ...]] = getattr(kind, "together", {})
    return joined


def _knob_fields(kind: type) -> list[Field[Any]]:
    turnable = [one for one in fields(kind) if one.init and not one.metadata.get("python_only")]
    return sorted(turnable, key=lambda one: bool(one.metadata.get("last")))


def knob_text(value: Any) -> str:
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


MOST_GPUS = 4_096
GPUS = "gpus"
OFFLOAD, TO_CPU = "offload", "cpu"
AXES = ("pipeline", "data", "shard", "tensor")
LAYOUT_SETTINGS = (*AXES, OFFLOAD)


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
    offload: bool = False
    """Shards, their gradients and optimizer states stay in pinned host memory (FSDP2's CPUOffloadPolicy)."""

    @property
    def gpus(self) -> int:
        return prod(self.sizes.values())

    @property
    def sizes(self) -> dict[str, int]:
        """Axis sizes by name, as a device mesh takes them."""
        return {name: getattr(self, name) for name in AXES}

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
        """ "2 data x 4 shard", and "offloaded to the CPU" if so."""
        parts = " x ".join(f"{size} {name}" for name, size in self.used.items())
        return f"{parts}, offloaded to the CPU" if self.offload else parts

    @property
    def as_json(self) -> dict[str, int | str]:
        return {**self.used, **({OFFLOAD: TO_CPU} if self.offload else {})}

    @property
    def as_texts(self) -> dict[str, str]:
        return {name: str(value) for name, value in self.as_json.items()}


ALONE = Parallel()


def parallel_of(texts: Mapping[str, str]) -> Parallel:
    """Parse the axes. With `gpus` and no `shard`, weights are sharded over the GPUs that other axes leave."""
    names = (GPUS, *LAYOUT_SETTINGS)
    for name in texts:
        if name not in names:
            raise UsageError(f"Parallel axes are {', '.join(AXES)}; there is no {name}.{nearest(name, names)}")
    texts = dict(texts)
    offload = texts.pop(OFFLOAD, "").strip()
    if offload not in ("", TO_CPU):
        raise UsageError(f"{OFFLOAD} must be {TO_CPU}, not {offload[:20]}.")
    sizes = {}
    for name, text in texts.items():
        if text.strip() and (not text.strip().isdecimal() or not 1 <= int(text) <= MOST_GPUS):
            raise UsageError(f"{name} must be a whole number from 1 to {MOST_GPUS:,}, not {text.strip()[:20]}.")
        if text.strip():
            sizes[name] = int(text)
    gpus = sizes.pop(GPUS, None)
    others = prod(size for name, size in sizes.items() if name != "shard")
    if gpus is not None and "shard" not in sizes and gpus % others == 0:
        sizes["shard"] = gpus // others
    parallel = Parallel(**sizes, offload=bool(offload))
    if gpus is not None and parallel.gpus != gpus:
        value = " x ".join(f"{size} {name}" for name, size in sizes.items())
        remedy = "their product must equal gpus" if "shard" in sizes else f"{others} must divide it"
        raise UsageError(f"gpus is {gpus}, but {value} are {parallel.gpus}: {remedy}.")
    if parallel.offload and parallel.shard == 1:
        raise UsageError(f"{OFFLOAD} to the {TO_CPU.upper()} is for shards: set shard to 2 or more.")
    if parallel.gpus > MOST_GPUS:
        raise UsageError(f"{parallel.gpus:,} GPUs exceed the limit of {MOST_GPUS:,}.")
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
    return parse_release(text, _OLDEST, _NEWEST) if text else None


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
    host_memory: str = ""
    """Memory of the machine, as in 64GiB, to say whether its processes fit; empty without a limit."""
    label: str = ""
    """Title of this variant; made from the optimizations where empty."""

    def __post_init__(self) -> None:
        for name, kind in (("on", On), ("optimizer", Optimizer), ("load", Load), ("platform", Platform)):
            if getattr(self, name) not in get_args(kind):
                raise UsageError(f"{name} must be one of {', '.join(get_args(kind))}, not {getattr(self, name)}.")
        release_of(self.torch)
        try:
            has_limit = self.host_memory_bytes != 0
        except ValueError as error:
            raise UsageError(f"Host memory: {error}") from None
        if not has_limit:
            raise UsageError("Host memory must be more than 0. Leave it empty for no limit.")
        if not 0 <= self.warmup <= 100 or not 1 <= self.steps <= 100:
            raise UsageError("A run must have 0 to 100 warm-up steps and 1 to 100 steps.")

    @property
    def release(self) -> tuple[int, int] | None:
        return release_of(self.torch)

    @property
    def host_memory_bytes(self) -> int | None:
        return parse_bytes(self.host_memory) if self.host_memory else None

    @property
    def processes_of_machine(self) -> int:
        """One for each GPU of a full machine."""
        return min(parallel_of(self.parallel).gpus, CARDS_OF_A_MACHINE)

    def fits_host(self, peak_bytes: int | None) -> bool | None:
        """Return whether the equal processes of a machine fit its memory; None without a size of either."""
        memory = self.host_memory_bytes
        return None if memory is None or peak_bytes is None else self.processes_of_machine * peak_bytes <= memory

    def as_json(self) -> dict[str, Any]:
        value = {**asdict(self), "conversion": "on-host" if self.load == "host" else "measured"}
        return value if self.host_memory else {name: one for name, one in value.items() if name != "host_memory"}

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
    arguments += ["--host-memory", request.host_memory] if request.host_memory else []
    arguments += ["--keep-output"] if request.keep_output else []
    arguments += [] if request.numerics else ["--no-numerics"]
    return shlex.join(arguments)


FACT = "run"
"""Name of the trace's fact that holds the run as JSON."""


def _duration(seconds: float) -> str:
    return duration_text(round(seconds * 1e6))


@dataclass(frozen=True)
class Seconds:
    """Time of one step, measured with the recording off."""

    median: float
    spread: float
    """Between the quartiles."""
    count: int
    clock: str
    low: float | None = None
    """A quarter of the steps were faster, a quarter slower than `high`."""
    high: float | None = None

    @property
    def spread_words(self) -> str:
        """Describe the spread shown next to the median."""
        if self.low is None or self.high is None:
            return f"spread {_duration(self.spread)}, {count_text(self.count)} steps"
        return f"{_duration(self.low)} to {_duration(self.high)} for the middle half of {count_text(self.count)} steps"


_BYTES = ("peak_allocated_bytes", "peak_reserved_bytes", "peak_requested_bytes", "weights_bytes")
_WORK = ("flops", "bytes_moved", "host_bytes", "link_bytes")


@dataclass(frozen=True)
class RankClass:
    ranks: tuple[int, ...]
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    peak_requested_bytes: int
    weights_bytes: int
    fit: str = ""
    """"yes", "no" or "close", as of a run."""
    flops: int = 0
    bytes_moved: int = 0
    host_bytes: int = 0
    link_bytes: int = 0
    """Bytes of one step, as in `Run`; 0 in older files."""

    @property
    def predicted_rank(self) -> int:
        """The rank of the class that was predicted."""
        return self.ranks[0]

    @classmethod
    def of(cls, ranks: Sequence[int], run: Run) -> RankClass:
        figures = {name: getattr(run, name) or 0 for name in (*_BYTES, *_WORK)}
        return cls(tuple(ranks), fit="" if run.fit is None else run.fit.word, **figures)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RankClass:
        """Raise TypeError for invalid values of a file."""
        names = [attribute.name for attribute in fields(cls)]
        values = {name: value[name] if name not in _WORK else value.get(name, 0) for name in names}
        values["ranks"] = tuple(values["ranks"])
        numbers = [*values["ranks"], *(values[name] for name in (*_BYTES, *_WORK))]
        if not 0 < len(values["ranks"]) <= MOST_GPUS or not all(type(one) is int and one >= 0 for one in numbers):
            raise TypeError("no class of ranks")
        if values["fit"] not in ("", "yes", "no", "close"):
            raise TypeError("no class of ranks")
        return cls(**values)


def file_of_rank(run: Path, rank: int, rank_of_run: int | None) -> Path:
    return run if rank == rank_of_run else run.with_name(f"{run.stem}.rank{rank}{run.suffix}")


@dataclass(frozen=True)
class Run:
    request: Request
    label: str
    describes: str
    """The workload in words, with its number of parameters."""
    mode: Literal["predicted", "measured"]
    device: str
    why: str
    """Why this mode was chosen, where the choice was ours."""
    window: str
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    peak_requested_bytes: int
    weights_bytes: int
    parameters: int
    flops: int | None
    bytes_moved: int | None
    seconds: Seconds | None
    took_seconds: float
    """Time of the prediction or measurement, without the check of outputs."""
    fit: Fit | None
    notes: tuple[str, ...]
    """Limitations and assumptions of such a run."""
    provenance: Mapping[str, str]
    command: str
    code: str
    """Python that applies the same in a script."""
    numerics: Mapping[str, Any] | None = None
    claim: str = "bitwise"
    host_bytes: int | None = None
    """Bytes copied between device and host in one step; None if not counted."""
    expected_error: ExpectedError | None = None
    """Set for predictions only."""
    rank: int | None = None
    """Among many GPUs, the rank that these figures describe: the one that reserves most."""
    classes: tuple[RankClass, ...] = ()
    """All ranks then, by what they take."""
    pinned_host_bytes: int | None = None
    """Pinned host memory, as used by offloading; None if not counted."""
    host_peak_bytes: int | None = None
    """Host memory of one process at its highest: weights that are loaded there, or CPU tensors and pinned blocks."""
    link_bytes: int | None = None
    """Bytes that collectives send to other devices in one step; None if not counted."""
    weights_at_peak_bytes: int | None = None
    """Weights on the card at the peak, where an offload keeps the others in host memory; None where all are there."""
    peak_while_loading: bool = False
    """Nothing takes as much after the model is loaded and converted."""
    warnings: tuple[str, ...] = ()
    """Dtypes that it used and the card has no hardware for, such as bf16 on a T4, in a sentence each."""
    library_code: str = ""
    """Calls of diffusers, transformers, peft and others that do the same; empty where they have none."""

    @property
    def fits_host(self) -> bool | None:
        return self.request.fits_host(self.host_peak_bytes)

    def as_json(self) -> dict[str, Any]:
        error = self.expected_error
        return {
            **asdict(self),
            "request": self.request.as_json(),
            "expected_error": None if error is None else error.as_json(),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Run:
        values = {attribute.name: value[attribute.name] for attribute in fields(cls) if attribute.name in value}
        values["request"] = Request.from_json(values["request"])
        values["seconds"] = Seconds(**values["seconds"]) if values.get("seconds") else None
        values["fit"] = Fit(**values["fit"]) if values.get("fit") else None
        error = values.get("expected_error")
        values["expected_error"] = ExpectedError.from_json(error) if error else None
        values["classes"] = tuple(map(RankClass.from_json, values.get("classes", ())))
        for name in ("notes", "warnings"):
            values[name] = tuple(str(text) for text in values.get(name, ()))
        return _checked(cls(**values))


def _checked(run: Run) -> Run:
    """Check the types of all fields, since files are untrusted."""
    kinds: dict[str, Any] = {"str": str, "int": int, "int | None": int | None, "bool": bool}
    kinds |= {"float": float | int, "float | None": float | int | None}
    parts: list[Any] = [run, run.request, *filter(None, (run.seconds, run.fit))]
    for part in parts:
        for attribute in fields(part):
            kind = kinds.get(str(attribute.type))
            if kind is not None and not isinstance(getattr(part, attribute.name), kind):
                raise TypeError(f"{attribute.name} is not {attribute.type}")
    texts = [*run.provenance.items(), *run.request.settings.items(), *run.request.parallel.items()]
    texts += [pair for _, knobs in run.request.optimizations for pair in knobs.items()]
    if run.mode not in ("predicted", "measured") or not all(type(one) is str for pair in texts for one in pair):
        raise TypeError("not a run")
    return run


def with_run(trace: Trace, run: Run) -> Trace:
    facts = {**trace.about.facts, **dict(_facts(run)), FACT: json.dumps(run.as_json())}
    return replace(trace, about=replace(trace.about, facts=facts))


def _facts(run: Run) -> Iterator[tuple[str, str]]:
    """Yield facts in words, for comparisons of traces."""
    if run.seconds is not None:
        yield "step time", f"{1000 * run.seconds.median:,.1f} ms ± {500 * run.seconds.spread:,.1f}"
    if run.flops:
        yield "work", work_text(run.flops)
    numerics = run.numerics or {}
    verdict, losses = numerics.get("verdict"), numerics.get("losses")
    missing = "not compared" if run.request.optimizations else "–"
    yield "output difference", str(verdict.get("short") or str(verdict["words"]).split(",")[0]) if verdict else missing
    if losses and losses["ours"]:
        yield "loss", _loss_text(losses)
    elif "forward pass" not in run.window:
        yield "loss", missing


def _loss_text(losses: Mapping[str, Any]) -> str:
    """Describe the loss of the last compared step, and the baseline's at the same step of the same training."""
    loss, reference = float(losses["ours"][-1]), float(losses["reference"][-1])
    trained = f" training {losses['trains']}" if losses.get("trains") else ""
    if loss == reference:
        return f"{loss:.6g}{trained}, equal"
    same = f"{loss:.6g}" == f"{reference:.6g}"
    return f"{loss:.6g}{trained}, {'equal in six digits' if same else f'baseline {reference:.6g}'}"


def run_of(trace: Trace) -> Run | None:
    """Read the run stored in a trace; None for foreign files and for invalid texts."""
    text = trace.about.facts.get(FACT)
    if text is None:
        return None
    try:
        return Run.from_json(json.loads(text))
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def save_run(trace: Trace, run: Run, path: Path) -> Trace:
    """Write both as one file, whole or not at all."""
    together = with_run(trace, run)
    with replacing(path) as file:
        write_pickle(together, file)
    return together


def load_run(path: Path) -> tuple[Trace, Run]:
    trace = load_trace(path)
    run = run_of(trace)
    if run is None:
        raise TraceError("It is a snapshot, but not a run of memviz.", source=path.name)
    return trace, run


def run_json(run: Run, path: Path | None = None) -> dict[str, Any]:
    request = run.request
    return {
        "workload": request.workload,
        "settings": dict(request.settings),
        "optimizations": [{"name": name, **knobs} for name, knobs in request.optimizations],
        "optimizer": request.optimizer,
        "mode": run.mode,
        "device": run.device,
        "peak_allocated_bytes": run.peak_allocated_bytes,
        "peak_reserved_bytes": run.peak_reserved_bytes,
        "peak_while_loading": run.peak_while_loading,
        "peak_reserved_on_card_bytes": getattr(run.fit, "peak_reserved_bytes", None),
        "fits": getattr(run.fit, "fits", None),
        "fit": getattr(run.fit, "word", None),
        "context": None if run.fit is None else context_on(run.device).as_json(),
        "expected_error": None if run.expected_error is None else run.expected_error.as_json(),
        "pinned_host_bytes": run.pinned_host_bytes,
        "host_peak_bytes": run.host_peak_bytes,
        "fits_host": run.fits_host,
        "weights_bytes": run.weights_bytes,
        "seconds": getattr(run.seconds, "median", None),
        "seconds_low": getattr(run.seconds, "low", None),
        "seconds_high": getattr(run.seconds, "high", None),
        "seconds_count": getattr(run.seconds, "count", None),
        "flops": run.flops,
        "numerics": run.numerics,
        "warnings": list(run.warnings),
        "trace": None if path is None else str(path),
        "run": run.as_json(),
    }
