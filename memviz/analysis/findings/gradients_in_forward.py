"""Gradients of a step that are live in the next one's forward, although the optimizer has used them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from memviz.analysis.findings.facts import Facts
from memviz.analysis.findings.finding import Finding, FindingKind
from memviz.analysis.purpose.activity import Doing
from memviz.analysis.purpose.reasons import Certainty
from memviz.analysis.step_names import step_name
from memviz.trace.model import Category
from memviz.units import bytes_text


def gradients_in_forward(facts: Facts) -> Iterator[Finding]:
    rows, spans = facts.rows, facts.phases.spans
    # Between two backwards without a step they are being added up, as they should.
    after_step = [
        now for before, now in zip(spans, spans[1:], strict=False)
        if before.doing == Doing.STEP and now.doing == Doing.FORWARD
    ]  # fmt: skip
    gradients = np.flatnonzero(facts.has_purpose(Category.GRADIENT))
    most, when = 0, None
    for span in after_step:
        middle = (span.first + span.last) // 2
        live = gradients[(rows.start[gradients] < span.first) & (rows.end[gradients] > middle)]
        size = int(rows.size[live].sum())
        if size > most:
            most, when = size, (span, live)
    if when is None or most < facts.noticeable_bytes:
        return
    span, live = when
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
