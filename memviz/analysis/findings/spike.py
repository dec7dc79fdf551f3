"""A spike that reserves memory which nothing after it needs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from memviz.analysis.findings.facts import Facts, site_name
from memviz.analysis.findings.finding import Finding, FindingKind
from memviz.analysis.purpose.activity import Doing
from memviz.trace.model import Action, Ints8
from memviz.units import bytes_text, count_text

_MUCH = 0.05
"""Of the peak of what is reserved."""
_HIGHER = 0.05
"""Of the peak: by so much a spike stands above all that comes behind it."""
_RISES = 0.1
"""Of the peak: live bytes fall behind a spike and rise again by at least so much. What only falls is no spike."""


def spike(facts: Facts) -> Iterator[Finding]:
    live, reserved = facts.line.live, facts.line.reserved
    top = int(live.argmax())
    later = np.maximum.accumulate(live[::-1])[::-1]
    rises = np.flatnonzero(later[top:] - live[top:] >= _RISES * live[top])
    if not len(rises):
        return
    # The first moment behind it after which live bytes never come as high again as they were there.
    valley = top + int(rises[0])
    needed = int(later[valley])
    if needed > (1 - _HIGHER) * live[top]:
        return
    before = np.flatnonzero(live[:top] <= needed)
    begin = _before_growth(facts, int(before[-1])) if len(before) else 0
    unused = min(int(reserved[valley:].min()) - needed, int(reserved[top : valley + 1].max() - reserved[begin]))
    if unused < max(_MUCH * int(reserved.max()), 1) or not _is_work_left(facts, valley - 1):
        return
    rows = _of_the_spike(facts, begin, top, valley)
    if not len(rows):
        return
    site = site_name(facts.largest_site(rows))
    mostly = f", mostly {site}" if site else ""
    yield Finding(
        FindingKind.SPIKE,
        unused,
        f"A spike at event {count_text(top - 1)}{mostly} reserved {bytes_text(unused)} that nothing after it uses: "
        f"it is {bytes_text(int(live[top]))} high, and at most {bytes_text(needed)} are live later.",
        "Make the spike smaller, or call torch.cuda.empty_cache() once behind it.",
        rows,
        top - 1,
        site,
    )


def _before_growth(facts: Facts, moment: int) -> int:
    """What is reserved for an alloc is reserved just before it."""
    others = np.flatnonzero(facts.device.events.action[:moment] < Action.SEGMENT_ALLOC)
    return int(others[-1]) + 1 if len(others) else 0


def _of_the_spike(facts: Facts, begin: int, top: int, valley: int) -> Ints8:
    """What is live at the top, was not before, and is freed before live bytes rise again. Moments, not events."""
    rows = facts.rows
    at_top = (rows.start < top) & (rows.end > top - 1)
    return np.flatnonzero(at_top & (rows.start >= begin) & (rows.end < valley))


def _is_work_left(facts: Facts, event: int) -> bool:
    """Whether the trace shows enough behind it to say what is needed there: a whole step, or else half of it all."""
    doing = [(span.first, span.doing) for span in facts.phases.spans]
    behind = [at for at, what in doing if what == Doing.FORWARD and at > event]
    if doing and facts.phases.is_training:
        return bool(behind) and any(what == Doing.BACKWARD and at > behind[0] for at, what in doing)
    if doing:
        return bool(behind)
    allocs = facts.device.events.action == Action.ALLOC
    return 2 * int(np.count_nonzero(allocs[event + 1 :])) >= int(np.count_nonzero(allocs))
