"""Gradients of a step that are live in the next one's forward, although the optimizer has used them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from memviz.analysis.findings.facts import Facts
from memviz.analysis.findings.finding import Finding, FindingKind
from memviz.analysis.purpose.activity import Doing
from memviz.analysis.purpose.phase_spans import PhaseSpan
from memviz.analysis.purpose.reasons import Certainty
from memviz.analysis.step_names import step_name
from memviz.trace.model import Category, Ints8
from memviz.units import bytes_text


def gradients_in_forward(facts: Facts) -> Iterator[Finding]:
    rows, spans = facts.rows, facts.phases.spans
    # Between two backwards without a step they are being added up, as they should.
    after_step = [
        now for before, now in zip(spans, spans[1:], strict=False)
        if before.doing == Doing.STEP and now.doing == Doing.FORWARD
    ]  # fmt: skip
    gradients = np.flatnonzero(facts.has_purpose(Category.GRADIENT))
    sizes = _live_until_middle(after_step, *(column[gradients] for column in (rows.start, rows.end, rows.size)))
    if not sizes or max(sizes) < facts.noticeable_bytes:
        return
    most = max(sizes)
    span = after_step[sizes.index(most)]
    live = gradients[(rows.start[gradients] < span.first) & (rows.end[gradients] > _middle(span))]
    certainty = facts.certainty(live)
    word = "probably gradients" if certainty is Certainty.PROBABLE else "gradients"
    name = step_name(facts.trace, facts.device, span)
    yield Finding(
        FindingKind.GRADIENTS_IN_FORWARD,
        most,
        f"{bytes_text(most)} of {word} are live during the forward of {name}, after an optimizer step has used them.",
        "Call optimizer.zero_grad(set_to_none=True) right after the step, before the next forward.",
        live,
        span.first,
        certainty=certainty,
    )


def _live_until_middle(spans: Sequence[PhaseSpan], start: Ints8, end: Ints8, size: Ints8) -> list[int]:
    """Bytes that were there when each began and still are in its middle; spans come one after the other."""
    by_end = np.argsort(end, kind="stable")
    ends = end[by_end]
    begun, ended = (np.concatenate([[0], np.cumsum(column)]) for column in (size, size[by_end]))
    found = []
    for span in spans:
        at_first, at_middle = np.searchsorted(ends, [span.first, _middle(span)], side="right")
        between = by_end[at_first:at_middle]
        gone = ended[at_first] + size[between[start[between] < span.first]].sum()
        found.append(int(begun[np.searchsorted(start, span.first)] - gone))
    return found


def _middle(span: PhaseSpan) -> int:
    return (span.first + span.last) // 2
