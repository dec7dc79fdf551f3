"""The row of one rank: a few kilobytes per file, from which the summary of many ranks is computed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SiteBytes:
    """Bytes of one call site at the peak."""

    key: str
    """The same in every rank of one program."""
    label: str
    bytes: int


@dataclass(frozen=True)
class KindBytes:
    """Bytes of one category at the peak."""

    kind: str
    bytes: int
    probable_bytes: int = 0
    """The part of `bytes` whose category is only probable. Tables of version 1 do not have it."""

    @property
    def words(self) -> str:
        """The category; 'probably parameter' where most bytes are only probable."""
        return f"probably {self.kind}" if 2 * self.probable_bytes > self.bytes else self.kind


@dataclass(frozen=True)
class RankRanOut:
    """One allocation that failed."""

    event: int
    requested_bytes: int
    live_bytes: int
    reserved_bytes: int
    site: str


@dataclass(frozen=True)
class StepPart:
    """A step of the recording, or what comes before the first."""

    number: int
    """The program's own number of the step, else counted from 1; 0 is the part before step 1."""
    name: str
    first_event: int
    last_event: int


@dataclass(frozen=True)
class Curve:
    """Live bytes over time, cut at steps, so that ranks can be laid over one another."""

    parts: tuple[StepPart, ...]
    columns: int
    """Number of columns per part, however many events it has."""
    live: tuple[int, ...]
    """The highest of each column, part after part. The largest of all is the peak."""

    @property
    def peaks(self) -> tuple[tuple[StepPart, int], ...]:
        spans = (self.live[begin : begin + self.columns] for begin in range(0, len(self.live), self.columns))
        return tuple((part, max(span)) for part, span in zip(self.parts, spans, strict=True))


@dataclass(frozen=True)
class RankRow:
    """The row of a file's device that ran out of memory, else of the device with the highest peak, as in `summary`."""

    place: str
    etag: str
    """Changes whenever the file does; empty where the place does not say."""
    file_bytes: int
    said_rank: int | None
    """The rank stored in the file itself."""
    said_mesh: str
    """'pp=1,dp=0' as the file itself says; empty where it does not."""
    origin: str
    device: str
    device_count: int
    event_count: int
    history: str
    start_bytes: int
    peak_bytes: int
    peak_event: int
    end_bytes: int
    reserved_peak_bytes: int
    reserved_end_bytes: int
    categories: tuple[KindBytes, ...]
    """Categories at the peak, the largest first; they add up to it."""
    sites: tuple[SiteBytes, ...]
    """Sites at the peak, the largest first; with `other_sites_bytes` they add up to it."""
    other_sites_bytes: int
    ran_out: tuple[RankRanOut, ...]
    ran_out_count: int
    """More than are kept, where a program tried again and again."""
    curve: Curve


@dataclass(frozen=True)
class FailedFile:
    place: str
    reason: str
    etag: str = ""
    file_bytes: int = 0


Reduced = RankRow | FailedFile
