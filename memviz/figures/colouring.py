"""Colours of a timeline: a group per allocation, in the order in which groups are stacked.

By category the order is fixed, long-lived kinds below, so that a peak reads as layers. By site or module the
groups with most bytes at the peak get the hues, and one grey *other* takes the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from memviz.analysis.cache import cached_on
from memviz.analysis.groups import group_codes
from memviz.analysis.lifetimes import lifetimes, live_rows
from memviz.analysis.purpose.categories import BEFORE_RECORDING, KINDS, SAYS_NOTHING, categories, kinds
from memviz.analysis.purpose.reasons import Certainty
from memviz.analysis.sums import sum_by
from memviz.analysis.timeline import timeline
from memviz.errors import UsageError
from memviz.figures.raster import SHADES
from memviz.figures.theme import Palette, mixed, palette
from memviz.trace.model import NO_STACK, Bools, Bytes1, Category, DeviceTrace, Ints8, Trace
from memviz.units import bytes_text

MEANINGS = ("category", "site", "module", "size")
OTHER = "other"

_CATEGORY_ORDER = (
    Category.PARAMETER,
    Category.WEIGHT_COPIES,
    Category.OPTIMIZER_STATE,
    Category.KV_CACHE,
    Category.GRAPH_POOL,
    Category.WORKSPACE,
    Category.COLLECTIVE,
    Category.GRADIENT,
    Category.AUTOCAST_WEIGHT_COPIES,
    Category.ACTIVATION,
    Category.INPUT,
    Category.OUTPUT,
    Category.HOST_COPY,
    Category.TEMPORARY,
    Category.UNKNOWN,
)
_HUES = (
    Category.PARAMETER,
    Category.ACTIVATION,
    Category.GRADIENT,
    Category.OPTIMIZER_STATE,
    Category.TEMPORARY,
    Category.WORKSPACE,
    Category.OUTPUT,
)
_SIZE_STEPS = (1 << 12, 1 << 16, 1 << 20, 1 << 22, 1 << 24, 1 << 26, 1 << 28)
_SHADE_STEP = 0.055
_EDGE_MIX = (0.0, 0.21, 0.42)
_DIMMED = 0.66


@dataclass(frozen=True, eq=False)
class Colouring:
    meaning: str
    labels: tuple[str, ...]
    """Group labels, from the bottom of the stack up."""
    group: Bytes1
    """Per row of `lifetimes`."""
    colours: tuple[str | float, ...]
    """Colour of each group: a category's name, 'before', or a share from `fill` to `ink`."""
    probable: Bools | None = None
    """Per row, whether its group is inferred and not sure."""


def colouring(trace: Trace, device: DeviceTrace, meaning: str = "category", among: Sequence[str] = ()) -> Colouring:
    """`among` are the keys of the groups that get hues, where several traces share them; see `largest_of_all`."""
    if meaning == "category":
        return _by_category(trace, device)
    if meaning == "size":
        return _by_size(device)
    if meaning in MEANINGS:
        return _by_key(trace, device, meaning, among)
    raise UsageError(f"{meaning!r} is no meaning of colour; there are {', '.join(MEANINGS)}.")


def cached_colouring(trace: Trace, device: DeviceTrace, meaning: str) -> Colouring:
    return cached_on(trace, (colouring, device.name, meaning), lambda: colouring(trace, device, meaning))


def telling_meaning(trace: Trace, device: DeviceTrace) -> str:
    """Return the first meaning of colour: category, or site where most of the peak has only a place."""
    rows = live_rows(device, timeline(device).peak_event)
    size, lives = lifetimes(device).size[rows], lifetimes(device)
    silent = np.isin(kinds(trace, device, rows), [KINDS.index(kind) for kind in SAYS_NOTHING])
    if 2 * int(size[silent].sum()) <= int(size.sum()):
        return "category"
    has_place = silent & (lives.stack[rows] != NO_STACK)
    return "site" if 2 * int(size[has_place].sum()) > int(size[silent].sum()) else "category"


def _by_category(trace: Trace, device: DeviceTrace) -> Colouring:
    place = np.zeros(len(KINDS), dtype=np.uint8)
    for i, category in enumerate(_CATEGORY_ORDER):
        place[category] = i + 1
    group = place[kinds(trace, device)]
    labels = (BEFORE_RECORDING, *(category.label for category in _CATEGORY_ORDER))
    colours = ("before", *(category.name for category in _CATEGORY_ORDER))
    probable = categories(trace, device).certainty == Certainty.PROBABLE
    return Colouring("category", labels, group, colours, probable)


def _by_size(device: DeviceTrace) -> Colouring:
    """Large ones at the bottom: they are few and change least."""
    steps = np.array(_SIZE_STEPS)
    group = len(steps) - np.searchsorted(steps, lifetimes(device).size, side="right")
    bounds = [bytes_text(size_step) for size_step in _SIZE_STEPS]
    labels = (f"{bounds[-1]} and more", *(f"{bounds[i]} to {bounds[i + 1]}" for i in reversed(range(len(bounds) - 1))))
    shares = tuple(1 - i / len(steps) for i in range(len(steps) + 1))
    return Colouring("size", (*labels, f"under {bounds[0]}"), group.astype(np.uint8), shares)


def _by_key(trace: Trace, device: DeviceTrace, meaning: str, among: Sequence[str]) -> Colouring:
    groups = _Groups.of(trace, device, meaning)
    among = tuple(dict.fromkeys(among))[: len(_HUES)]
    chosen = groups.rows_of(among) if among else groups.largest()
    group_of = np.full(len(groups.names), len(chosen), dtype=np.uint8)
    group_of[chosen] = np.arange(len(chosen))
    keys_and_labels = [groups.names[row] for row in chosen]
    # Of what several traces share, all of it has its hue, whether it is in this one or not.
    hues = dict(zip(among, _hues_of(among), strict=True)) if among else {}
    own = [hues[key] for key, _ in keys_and_labels] if among else _hues_of([key for key, _ in keys_and_labels])
    colours = (*(hue.name for hue in own), Category.UNKNOWN.name)
    # Labels that are not unique, or equal to OTHER, get their unique keys.
    counts = Counter([label for _, label in keys_and_labels] + [OTHER])
    labels = [label if counts[label] == 1 else f"{label} ({key})" for key, label in keys_and_labels]
    return Colouring(meaning, (*labels, OTHER), group_of[groups.code], colours)


@dataclass(frozen=True, eq=False)
class _Groups:
    names: list[tuple[str, str]]
    """Key and label of each."""
    code: npt.NDArray[np.intp]
    """Per row of `lifetimes`."""
    at_peak: Ints8
    """Bytes of each."""

    @staticmethod
    def of(trace: Trace, device: DeviceTrace, meaning: str) -> _Groups:
        keyed = group_codes(trace, device, np.arange(len(lifetimes(device))), meaning)
        numbers, code = np.unique(keyed.codes, return_inverse=True)
        live = live_rows(device, timeline(device).peak_event)
        sums = sum_by(code[live], lifetimes(device).size[live], len(numbers))
        return _Groups([keyed.name(int(number)) for number in numbers], code, sums)

    def largest(self) -> list[int]:
        order = np.argsort(-self.at_peak, kind="stable")
        chosen: list[int] = order[self.at_peak[order] > 0][: len(_HUES)].tolist()
        return chosen

    def rows_of(self, keys: Sequence[str]) -> list[int]:
        places = {key: row for row, (key, _) in enumerate(self.names)}
        return [places[key] for key in keys if key in places]


@dataclass(frozen=True)
class SharedHue:
    key: str
    label: str
    shades: tuple[str, str]
    """On light and on dark pages."""


def largest_of_all(pairs: Sequence[tuple[Trace, DeviceTrace]], meaning: str) -> list[SharedHue]:
    """Return the hues shared by several traces: the groups with most bytes at all their peaks, each with one hue."""
    totals: Counter[str] = Counter()
    labels: dict[str, str] = {}
    for trace, device in pairs:
        groups = _Groups.of(trace, device, meaning)
        for (key, label), size in zip(groups.names, groups.at_peak.tolist(), strict=True):
            totals[key] += size
            labels.setdefault(key, label)
    keys = [key for key, size in totals.most_common(len(_HUES)) if size]
    shades = [(palette(False).category(hue), palette(True).category(hue)) for hue in _hues_of(keys)]
    return [SharedHue(key, labels[key], shade) for key, shade in zip(keys, shades, strict=True)]


def _hues_of(keys: Sequence[str]) -> list[Category]:
    """Return a hue per key, the same in every trace as far as there are enough: the larger one chooses first."""
    free, hues = list(_HUES), []
    for key in keys:
        wanted = _HUES[int.from_bytes(blake2b(key.encode(errors="replace"), digest_size=4).digest()) % len(_HUES)]
        hues.append(wanted if wanted in free else free[0])
        free.remove(hues[-1])
    return hues


def pixel_palette(colours: Colouring, *, dark: bool, dimmed: bool = False) -> npt.NDArray[np.uint32]:
    """0xRRGGBB by group, shade and edge; see `raster.colour_grid`."""
    look = palette(dark)
    table = np.zeros((len(colours.labels), SHADES, len(_EDGE_MIX)), dtype=np.uint32)
    for i, name in enumerate(colours.colours):
        for shade in range(SHADES):
            base = mixed(_colour(look, name), "#ffffff" if shade > 2 else "#000000", abs(shade - 2) * _SHADE_STEP)
            for edge, share in enumerate(_EDGE_MIX):
                blended = mixed(base, look.page, share)
                table[i, shade, edge] = int(mixed(blended, look.page, _DIMMED if dimmed else 0)[1:], 16)
    return table


def group_colour(colours: Colouring, group: int, *, dark: bool) -> str:
    return _colour(palette(dark), colours.colours[group])


def _colour(look: Palette, name: str | float) -> str:
    if isinstance(name, float):
        return mixed(look.fill, look.ink, 0.15 + 0.7 * name)
    return look.before if name == "before" else look.category(Category[name])
