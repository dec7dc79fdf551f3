"""The table of real recordings in `memviz/allocator/README.md` is up to date."""

from pathlib import Path

from memviz.allocator.replay_result import Figures
from memviz.allocator.replayer import CardMemory, Replayer
from memviz.allocator.settings import parse_settings
from tests.allocator.driver import MiB
from tests.real import each_real_file, read_once, requires_real

README = Path(__file__).parents[2] / "memviz" / "allocator" / "README.md"


def fate(figures: Figures) -> str:
    if figures.oom is None:
        return f"fits, {figures.retries} {'retry' if figures.retries == 1 else 'retries'}"
    return f"runs out at event {figures.oom.event:,}" if figures.oom.event >= 0 else "too little before the first event"


def row(path: Path) -> str:
    """A history of one event or none has no replays."""
    source = Replayer(read_once(path))
    recorded = source.as_recorded()
    assert recorded.agreement is not None
    asked = ["–", "–", "–"]
    if len(source.device.events) > 1:
        # Nine tenths of the recorded peak, and no overhead: it is the process's own memory.
        card, expandable = (
            CardMemory(recorded.peak_reserved_bytes * 9 // 10, 0),
            parse_settings("expandable_segments:True"),
        )
        free = source.figures(expandable)
        asked = [f"{free.peak_reserved_bytes // MiB:,}"]
        asked += [fate(source.figures(None, card)), fate(source.figures(expandable, card))]
    cells = [path.stem, f"{len(source.device.events):,}", str(recorded.agreement.address_mismatches)]
    cells += ["yes" if recorded.exact else "no", f"{recorded.peak_reserved_bytes // MiB:,}", *asked]
    return f"| {' | '.join(cells)} |"


@requires_real
@each_real_file
def test_the_row_of_a_real_recording_is_what_comes_out(path: Path) -> None:
    assert row(path) in README.read_text(encoding="utf-8").splitlines()
