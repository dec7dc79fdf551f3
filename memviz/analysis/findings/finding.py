"""A finding: one sentence with its figure and the allocations that show it; and the facts that all findings look at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

import numpy as np

from memviz.analysis.callstacks.sites import NO_SITE, Site, sites
from memviz.analysis.lifetimes import Lifetimes, lifetimes
from memviz.analysis.purpose.activity import Activity
from memviz.analysis.purpose.categories import Categories, categories
from memviz.analysis.purpose.phases import PhaseSpan, PhaseSpans, phase_spans
from memviz.analysis.purpose.reasons import Certainty
from memviz.analysis.sums import sum_by
from memviz.analysis.timeline import Timeline, timeline
from memviz.trace.model import Action, Bools, Category, DeviceTrace, Ints8, Trace


class FindingKind(StrEnum):
    """Each with at most five words for its bytes; a finding's sentence says more."""

    title_text: str

    def __new__(cls, value: str, title: str) -> FindingKind:
        kind = str.__new__(cls, value)
        kind._value_, kind.title_text = value, title
        return kind

    OUT_OF_MEMORY = "out_of_memory", "missing when memory ran out"
    ACTIVATIONS = "activations", "activations saved for backward"
    KEPT_TOO_LONG = "kept_too_long", "kept into the next step"
    GROWING = "growing", "growth from step to step"
    SPIKE = "spike", "reserved by a short spike"
    PINNED_SEGMENTS = "pinned_segments", "stuck in partly used segments"
    DUPLICATED_WEIGHTS = "duplicated_weights", "probable second copy of weights"
    GRADIENTS_IN_FORWARD = "gradients_in_forward", "gradients live during forward"
    WIDER_COPIES = "wider_copies", "probable copies to wider dtypes"
    LARGE_TEMPORARY = "large_temporary", "temporary at the peak"
    PRIVATE_POOLS = "private_pools", "in private pools"
    WAITING_FREES = "waiting_frees", "freed late, for other streams"
    KEPT_BY_LIST = "kept_by_growing_list", "kept by a growing container"
    KEPT_BY_GRAPH = "kept_by_autograd_graph", "kept by an autograd graph"
    KEPT_BY_EXCEPTION = "kept_by_exception", "kept by an exception"
    WAITS_FOR_COLLECTION = "waits_for_collection", "waiting for garbage collection"
    HOST_LOADED_BY_EACH = "host_loaded_by_each_process", "host: loaded by each process"
    HOST_GROWING = "host_growing", "host: growth each step"
    HOST_PINNED_ROUNDING = "host_pinned_rounding", "host: pinned beyond tensors"


@dataclass(frozen=True, eq=False)
class Finding:
    kind: FindingKind
    bytes: int
    """Bytes that rank the finding; the sentence explains what they count."""
    sentence: str
    remedy: str
    rows: Ints8
    """Rows of `lifetimes` that show it, ascending."""
    event: int
    """After which it is seen best."""
    site: str = ""
    """Site of most of it; empty without a recorded stack or a single site."""
    certainty: Certainty = Certainty.SURE
    holder: str = ""
    """Variable that keeps most of it, where holders were recorded."""
    line: str = ""
    """Line of the program that stores it there, such as `train.py:41`."""
    number: int = 1
    """Among those of its kind, the largest first."""

    @property
    def key(self) -> str:
        """Name of the finding in links and requests."""
        return f"{self.kind}-{self.number}"


NOTICEABLE = 0.01
"""Share of a peak below which nothing is worth a sentence."""
_LONGEST_SITE = 60


@dataclass(frozen=True)
class Facts:
    trace: Trace
    device: DeviceTrace

    @cached_property
    def rows(self) -> Lifetimes:
        return lifetimes(self.device)

    @cached_property
    def line(self) -> Timeline:
        return timeline(self.device)

    @cached_property
    def purposes(self) -> Categories:
        return categories(self.trace, self.device)

    @cached_property
    def phases(self) -> PhaseSpans:
        return phase_spans(self.trace, self.device)

    @cached_property
    def forwards(self) -> tuple[PhaseSpan, ...]:
        """The first forward of every step; where nothing is trained, every forward."""
        first: dict[int, PhaseSpan] = {}
        for span in self.phases.spans:
            if span.doing == Activity.FORWARD:
                first.setdefault(span.step, span)
        return tuple(first.values())

    @cached_property
    def forward_begins(self) -> Ints8:
        return np.array([span.first for span in self.forwards], dtype=np.int64)

    @cached_property
    def failed_events(self) -> Ints8:
        return np.flatnonzero(self.device.events.action == Action.OOM)

    @property
    def count(self) -> int:
        return len(self.device.events)

    @property
    def noticeable_bytes(self) -> int:
        return max(int(NOTICEABLE * self.line.peak_bytes), 1)

    def has_purpose(self, *wanted: Category) -> Bools:
        return np.isin(self.purposes.category, np.array(wanted, dtype=np.uint8))

    def certainty(self, rows: Ints8) -> Certainty:
        """Sure where the purpose of at least half of these bytes is."""
        sizes = self.rows.size[rows]
        is_sure = 2 * int(sizes[self.purposes.sure[rows]].sum()) >= int(sizes.sum())
        return Certainty.SURE if is_sure else Certainty.PROBABLE

    def by_site(self, rows: Ints8) -> Iterator[tuple[Site, Ints8]]:
        table = sites(self.trace)
        codes = table.of_stack[self.rows.stack[rows]]
        order = np.argsort(codes, kind="stable")
        firsts = np.flatnonzero(np.diff(codes[order], prepend=-1))
        for part in np.split(rows[order], firsts[1:]) if len(rows) else ():
            yield table.of(int(self.rows.stack[part[0]])), part

    def largest_site(self, rows: Ints8) -> Site:
        """Site with most of these bytes."""
        table = sites(self.trace)
        codes = table.of_stack[self.rows.stack[rows]]
        return table.sites[int(sum_by(codes, self.rows.size[rows], len(table.sites)).argmax())]

    def most_together(self, rows: Ints8) -> tuple[int, int]:
        """How many bytes of these are live at once at most, and the first event after which they are."""
        moments = np.concatenate([self.rows.start[rows], self.rows.end[rows]])
        change = np.concatenate([self.rows.size[rows], -self.rows.size[rows]])
        order = np.argsort(moments, kind="stable")
        moments, live = moments[order], np.cumsum(change[order])
        # Of several changes at one event, only the last holds the live bytes after it.
        last = np.append(moments[1:] != moments[:-1], True)
        best = int(live[last].argmax())
        return int(live[last][best]), min(int(moments[last][best]), self.count - 1)


def site_name(site: Site) -> str:
    """Empty where no stack was recorded."""
    return "" if site == NO_SITE else short_label(site.label)


def short_label(label: str) -> str:
    """A function in an untrusted file may have a name of a megabyte."""
    half = _LONGEST_SITE // 2
    return label if len(label) <= _LONGEST_SITE else f"{label[: half - 1]}…{label[-half:]}"


def origin_text(site: Site) -> str:
    """ " made by model.py:12 forward", or nothing."""
    name = site_name(site)
    return f" made by {name}" if name else ""
