"""The same run really repeated under other settings and with less memory, beside what replay says of the first one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from memviz.allocator.replayer import Replayer
from memviz.allocator.settings import parse_settings
from memviz.analysis.timeline import timeline
from memviz.trace.load import load_trace
from memviz.trace.model import Trace
from tests.gpu.capture import take
from tests.gpu.case import Case
from tests.gpu.comparing import first_difference, gpu_of, growth_of, out_of_memory_at, requests_of
from tests.gpu.results import Results
from tests.replays import replay

_BASES = ("lengths", "gpt2", "ltx")
_SMALL = ("lengths",)
_CONFS = {"expandable": "expandable_segments:True", "max-split-128": "max_split_size_mb:128"}
_SHARES = {"tight": 0.5, "short": -0.1}
"""Where between its allocated and its reserved peak the limit lies: in between it must give back what it cached, and
may run out; below the first it has to."""
_GRANULE = 2 << 20


def _cases() -> Iterator[Case]:
    for base in _BASES:
        of = {"small": base in _SMALL, "of": ("capture", base)}
        for name, conf in _CONFS.items():
            variables = dict.fromkeys(("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"), conf)
            yield Case("what-if", f"{base}-{name}", {"conf": conf}, 12, 13, variables, **of)
        for name, share in _SHARES.items():
            yield Case("what-if", f"{base}-{name}", {"share": share}, 12, 13, **of)


CASES = tuple(_cases())


def run(case: Case, out: Path) -> dict[str, Any]:
    captured = case.result_in(Results(out))
    base, machine = captured["result"], captured["machine"]
    wanted = {**captured["arguments"], "limit": limit_of(base, case.arguments.get("share"))}
    path = Results(out).folder_of("what-if") / f"{case.name}.pickle.gz"
    repeated = take(wanted, path)
    found = beside(
        load_trace(out / "capture" / base["file"]),
        load_trace(path),
        conf=case.arguments.get("conf"),
        fraction=repeated["fraction"],
        total=machine["memory_bytes"],
    )
    return {**found, "limit_bytes": wanted["limit"], "repeated": repeated}


def limit_of(base: Mapping[str, Any], share: float | None) -> int | None:
    if share is None:
        return None
    low, high = base["peak_allocated_bytes"], base["peak_reserved_bytes"]
    wanted = low + share * (high - low) if share > 0 else low * (1 + share)
    return int(wanted) // _GRANULE * _GRANULE


def beside(base: Trace, repeated: Trace, *, conf: str | None, fraction: float | None, total: int) -> dict[str, Any]:
    """What replay makes of `base` under these settings, and what really came of it."""
    source = Replayer(base, gpu_of(base))
    settings = source.recorded if conf is None else parse_settings(conf)
    if fraction is not None:
        settings = replace(settings, per_process_memory_fraction=fraction)
    # As the card has it, so that the process is limited by its fraction and by nothing else.
    predicted = replay(base, gpu_of(base), settings=settings, total=total)
    really, imagined = gpu_of(repeated), predicted.trace.devices[0]
    short = predicted.oom
    ran_out = None if short is None else {"served": len(requests_of(imagined)), "asked": short.requested_bytes}
    return {
        "settings": settings.to_text(),
        "same_requests_until": first_difference(requests_of(gpu_of(base)), requests_of(really)),
        "requests": len(requests_of(really)),
        "reserved": {"measured": timeline(really).reserved_peak_bytes, "predicted": predicted.peak_reserved_bytes},
        "ran_out": {"measured": out_of_memory_at(really), "predicted": ran_out},
        "segments": {"measured": len(growth_of(really)), "predicted": len(growth_of(imagined))},
        "first_other_segment": first_difference(growth_of(really), growth_of(imagined)),
        "retries_predicted": predicted.retries,
    }
