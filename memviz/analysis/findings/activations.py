"""Activations that wait for the backward at the peak: what checkpointing and less precision are for."""

from __future__ import annotations

from collections.abc import Iterator

from memviz.analysis.actions.autocast import is_mixed
from memviz.analysis.actions.layers import layers_holding
from memviz.analysis.findings.facts import Facts, site_name
from memviz.analysis.findings.finding import Finding, FindingKind
from memviz.analysis.live import live_rows
from memviz.analysis.purpose.activity import Doing, stack_signs
from memviz.analysis.purpose.reasons import Certainty, Reason
from memviz.trace.model import Category, Ints8
from memviz.units import bytes_text, percent_text

_MUCH = 0.2
"""Of the peak."""
_WAIT = {True: "wait for the backward", False: "wait for a backward, which this recording does not reach"}


def activations(facts: Facts) -> Iterator[Finding]:
    event = facts.line.peak_event
    if event < 0:
        return
    rows = live_rows(facts.device, event)
    rows = rows[facts.has_purpose(Category.ACTIVATION)[rows]]
    has_backward = any(span.doing == Doing.BACKWARD for span in facts.phases.spans)
    if not has_backward:
        # A recording that ends, or ran out of memory, before it. What a forward lets go by itself waits for nothing,
        # and what goes once a request has failed goes with the exception.
        failed = facts.failed_requests[facts.failed_requests >= event]
        rows = rows[facts.rows.end[rows] > (failed[0] if len(failed) else facts.count - 1)]
    size = int(facts.rows.size[rows].sum())
    if size < max(_MUCH * facts.line.peak_bytes, 1):
        return
    certainty = facts.certainty(rows)
    probably = "probably " if certainty is Certainty.PROBABLE else ""
    layers = _in_layers(facts, rows)
    yield Finding(
        FindingKind.ACTIVATIONS,
        size,
        f"{bytes_text(size)} of the peak, {percent_text(size, facts.line.peak_bytes)}, are {probably}activations that "
        f"{_WAIT[has_backward]}{layers}.",
        _remedy(facts, bool(layers)),
        rows,
        event,
        site_name(facts.largest_site(rows)),
        certainty,
    )


def _remedy(facts: Facts, has_layers: bool) -> str:
    """What is not done already."""
    ways = []
    # Stacks show it of what was recorded, and the reason of what an estimate makes again.
    recomputes = stack_signs(facts.trace).recomputes[facts.rows.stack] | (facts.purposes.reason == Reason.RECOMPUTED)
    if has_layers or not recomputes.any():
        ways.append("checkpoint layers, so that they are made again in the backward")
    if not is_mixed(facts):
        ways.append("work in half the precision")
    words = ", or ".join(ways) or "take a smaller batch, or shorter inputs"
    return f"{words[0].upper()}{words[1:]}."


def _in_layers(facts: Facts, live: Ints8) -> str:
    layers = layers_holding(facts, live, facts.line.peak_event)
    if layers is None:
        return ""
    return f", {bytes_text(int(facts.rows.size[layers.rows].sum()))} of it in {layers.words}"
