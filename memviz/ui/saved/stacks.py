"""What a saved page says of a pinned allocation besides its own figures: the stack, as the page's inspector has it."""

from __future__ import annotations

from typing import Any

import numpy as np

from memviz.analysis.lifetimes import lifetimes
from memviz.analysis.sums import sum_by
from memviz.trace.model import DeviceTrace, Trace
from memviz.ui.explore.inspector import stack_html
from memviz.ui.saved.views import Texts

_MOST_STACKS = 400


def saved_stacks(trace: Trace, device: DeviceTrace, texts: Texts, most: int) -> dict[str, Any]:
    """By numbers of the piece `stacks`: the text's number. Of too many, the stacks with most bytes.

    `most`: characters of all together.
    """
    rows = lifetimes(device)
    sums = sum_by(rows.stack + 1, rows.size, len(trace.stacks) + 1)
    used = np.flatnonzero(np.bincount(rows.stack + 1, minlength=len(sums)))
    heaviest = used[np.argsort(-sums[used], kind="stable")]
    numbers, room = {}, most
    for number in heaviest[:_MOST_STACKS].tolist():
        html = stack_html(trace, number - 1, "Stack, our frames first")
        room -= len(html)
        if room < 0:
            break
        numbers[str(number)] = texts.number(html)
    return {"texts": numbers, "are_all": len(numbers) == len(used)}
