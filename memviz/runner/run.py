"""The answer to a request: figures, their origin and the trace, kept as one snapshot file that every viewer opens."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from memviz.allocator.context import context_on
from memviz.errors import TraceError
from memviz.predictor.expected_error import ExpectedError, Fit
from memviz.runner.request import MOST_GPUS, Request
from memviz.trace.load import load_trace
from memviz.trace.model import Trace
from memviz.trace.write import replacing, write_pickle
from memviz.units import count_text, duration_text

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
    def shown(self) -> int:
        """The one that was predicted."""
        return self.ranks[0]

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
        yield "work", f"{run.flops / 1e12:,.1f} TFLOP"
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
        raise TraceError("It is a snapshot, but not one of memviz's runs.", source=path.name)
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
