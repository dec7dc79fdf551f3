"""The prediction of a recorded program, compared to its recording."""

from contextlib import chdir
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cache
from tempfile import TemporaryDirectory

from memviz.allocator.settings import parse_settings
from memviz.predictor.cards import card_named
from memviz.predictor.device import PredictedDevice
from memviz.predictor.rules import NO_RULE, RULES
from memviz.trace.load import load_trace
from memviz.trace.model import Phase
from tests.predictor.rows import sizes
from tests.truth.programs import PROGRAMS
from tests.truth.recordings import Peaks, Recording, recording


@dataclass(frozen=True)
class Comparison:
    recording: Recording
    predicted: Peaks
    sizes: list[int]
    operators: frozenset[str]
    rules: frozenset[str]
    """Rules of the predictor that allocated memory."""
    trains: bool
    """True if the backward or an optimizer step allocated memory."""

    @property
    def exact(self) -> tuple[bool, bool, bool]:
        """Live, allocated and reserved."""
        told, truth = self.predicted, self.recording.peaks
        return told.live == truth.live, told.allocated == truth.allocated, told.reserved == truth.reserved

    @property
    def equal_share(self) -> float:
        """Share of allocations that are equal and in the same order."""
        matcher = SequenceMatcher(None, self.recording.sizes, self.sizes, autojunk=False)
        equal = sum(block.size for block in matcher.get_matching_blocks())
        return equal / max(len(self.recording.sizes), len(self.sizes))

    @property
    def first_difference(self) -> int | None:
        """The number of the first allocation that differs."""
        truth = self.recording.sizes
        if truth == self.sizes:
            return None
        pairs = zip(truth, self.sizes, strict=False)
        return next((at for at, (one, other) in enumerate(pairs) if one != other), min(len(truth), len(self.sizes)))


@cache
def compare(name: str) -> Comparison:
    """Predict a recorded program, in the window of its dumped history if it dumped one."""
    recorded = recording(name)
    card = card_named(recorded.card)
    settings = parse_settings(recorded.settings, recorded.release)
    told = PredictedDevice(card, settings=settings, release=recorded.release, platform=recorded.platform)
    with TemporaryDirectory() as folder, chdir(folder), told as device:
        PROGRAMS[name]()
        if device.windows:
            (window,) = device.windows
            peaks = Peaks(window.peak_requested_bytes, window.peak_allocated_bytes, window.peak_reserved_bytes)
            taken = sizes(load_trace(window.file))
        else:
            taken = sizes(device.finish())
            peaks = Peaks(*device.highest_bytes())
        numbers = set(device.recorder.columns.rule) - {NO_RULE}
        rules = frozenset(RULES[number].name for number in numbers)
        trains = bool({Phase.BACKWARD, Phase.STEP} & set(device.recorder.columns.phase))
        return Comparison(recorded, peaks, taken, frozenset(device.recorder.operators), rules, trains)
