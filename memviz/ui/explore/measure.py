"""What an allocation counts for in the live set's icicle and tables: its bytes, one, or its bytes while it lived."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from memviz.analysis.breakdown import WeightedRows, rows_in_range
from memviz.analysis.groups import Group
from memviz.analysis.lifetimes import lifetimes
from memviz.figures.colouring import Colouring
from memviz.trace.model import DeviceTrace, Ints8
from memviz.ui.html.markup import Html, tag
from memviz.ui.html.words import exact
from memviz.units import bytes_text, count_text, counted


@dataclass(frozen=True)
class Measure:
    """How figures of one kind are said."""

    kind: str = "bytes"
    """One of `state.WEIGHTS`."""
    events: int = 1
    """What bytes × lifetime are divided by, for bytes on average."""

    @property
    def head(self) -> str:
        return "Mean bytes" if self.kind == "lifetime" else "Bytes"

    def text(self, value: int) -> str:
        if self.kind == "count":
            return count_text(value)
        return bytes_text(round(value / self.events))

    def exact(self, value: int) -> str:
        if self.kind == "count":
            return counted(value, "allocation")
        return exact(value) if self.kind == "bytes" else f"{count_text(value)} B × events"

    @property
    def cell(self) -> Measure:
        """Of the column of bytes, which a table of counts has as well."""
        return BYTES if self.kind == "count" else self

    def html(self, value: int) -> Html:
        return tag("span", self.text(value), title=self.exact(value))

    def share_of(self, group: Group) -> int:
        """What its bar and its share are made of."""
        return group.count if self.kind == "count" else group.bytes


BYTES = Measure()


def weighed_by_bytes(device: DeviceTrace, rows: Ints8, colours: Colouring) -> WeightedRows:
    return WeightedRows(rows, lifetimes(device).size[rows], colours.group[rows], colours.labels)


def weighed_by_count(rows: Ints8, colours: Colouring) -> WeightedRows:
    return WeightedRows(rows, np.ones(len(rows), dtype=np.int64), colours.group[rows], colours.labels)


def weighed_by_lifetime(device: DeviceTrace, span: tuple[int, int], colours: Colouring) -> tuple[WeightedRows, Measure]:
    held = rows_in_range(device, *span)
    part = colours.group[held.rows]
    return WeightedRows(held.rows, held.byte_events, part, colours.labels), Measure("lifetime", held.events)


def painted(weighed: WeightedRows, colours: Colouring) -> WeightedRows:
    """The same, counted as what other colours mean."""
    return WeightedRows(weighed.rows, weighed.weight, colours.group[weighed.rows], colours.labels)
