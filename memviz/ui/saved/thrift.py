"""How much a saved page keeps. Few traces need the second of these: their texts are long, or there are many."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Thrift:
    columns: int
    """Characters that the timelines of all traces may take."""
    stacks: int
    """Characters of stacks as HTML, of all traces, before they are compressed to about a twentieth."""
    moments: int
    """With tables of their own, the peak first."""
    zooms: int
    """Boxes of the icicle that can be zoomed into."""
    every_row: bool
    """Tables have more rows than are seen at first."""


GENEROUS = Thrift(columns=2_100_000, stacks=2_000_000, moments=4, zooms=16, every_row=True)
SPARE = Thrift(columns=1_200_000, stacks=200_000, moments=1, zooms=0, every_row=False)
MOST_BYTES = 3_000_000
"""Of a page."""
