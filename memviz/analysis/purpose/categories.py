"""What each allocation is for: as our own runs recorded it, else inferred, with the reason and how sure it is.

First speak those who know: our own labels, and metadata of the program. Then what the program was doing (`RULES`),
then sizes and order (`from_the_start`, `before_recording`, `by_order`), each for what is open still.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from memviz.analysis.cache import kept
from memviz.analysis.lifetimes import lifetimes
from memviz.analysis.purpose.activity import Doing, stack_signs
from memviz.analysis.purpose.before_recording import say_before_recording
from memviz.analysis.purpose.by_order import say_by_order
from memviz.analysis.purpose.evidence import Evidence
from memviz.analysis.purpose.findings import Findings
from memviz.analysis.purpose.from_the_start import say_from_the_start, say_weight_copies
from memviz.analysis.purpose.metadata import say_annotations, say_metadata
from memviz.analysis.purpose.phases import label_of_rows
from memviz.analysis.purpose.reasons import Certainty, Reason
from memviz.analysis.purpose.replacements import agreed, freed_like
from memviz.analysis.purpose.rules import LAST_RULES, RULES, Rule
from memviz.analysis.purpose.taken_over import known_of_rows
from memviz.trace.distinct import is_among
from memviz.trace.model import Bools, Bytes1, Category, Columns, DeviceTrace, Phase, Trace

_CUT_OFF = (Reason.BACKWARD_CUT_OFF, Reason.STEP_CUT_OFF, Reason.FORWARD_ONLY_KEPT, Reason.FORWARD_OUTPUT)
"""What is said of blocks whose end the trace may not show."""


@dataclass(frozen=True, eq=False)
class Categories(Columns):
    """One row per row of `lifetimes`."""

    category: Bytes1
    reason: Bytes1
    certainty: Bytes1

    @property
    def sure(self) -> Bools:
        return self.certainty >= Certainty.SURE


def categories(trace: Trace, device: DeviceTrace) -> Categories:
    return kept(trace, (categories, device), lambda: _categorised(trace, device))


def _categorised(trace: Trace, device: DeviceTrace) -> Categories:
    evidence = Evidence(trace, device)
    findings = Findings(len(evidence.size))
    _say_recorded(findings, trace, device)
    _say_taken_over(findings, trace, device)
    say_metadata(findings, trace, device)
    if device.kind == "host":
        findings.say(findings.open, Category.HOST_COPY, Reason.HOST, Certainty.SURE)
    _apply(RULES, findings, evidence)
    _follow_free(findings, device)
    _follow_same_stack(findings, evidence)
    say_annotations(findings, trace, device)
    say_by_order(findings, evidence, device)
    say_before_recording(findings, evidence, device)
    say_weight_copies(findings, evidence)
    say_from_the_start(findings, evidence)
    _apply(LAST_RULES, findings, evidence)
    return Categories(findings.category, findings.reason, findings.certainty)


def _say_recorded(findings: Findings, trace: Trace, device: DeviceTrace) -> None:
    recorded = label_of_rows(device, "category")
    if recorded is not None:
        # A run labels what a forward keeps as activations, whatever autocast made of it.
        is_cast = (recorded == Category.ACTIVATION) & stack_signs(trace).casts[lifetimes(device).stack]
        known = np.flatnonzero((recorded != Category.UNKNOWN) & ~is_cast)
        findings.say(known, recorded[known], Reason.RECORDED, Certainty.STATED)


def _say_taken_over(findings: Findings, trace: Trace, device: DeviceTrace) -> None:
    """Where nothing was found there, nothing is found here either."""
    known = known_of_rows(device)
    if known is None:
        return
    is_forward = stack_signs(trace).doing[lifetimes(device).stack] == Doing.FORWARD
    is_again = is_forward & (known.phase == Phase.BACKWARD)
    for chosen, reason in ((is_again, Reason.RECOMPUTED), (~is_again, Reason.TAKEN_OVER)):
        rows = np.flatnonzero(findings.open & known.is_known & chosen)
        findings.say(rows, known.category[rows], reason, known.certainty[rows])


def _apply(rules: tuple[Rule, ...], findings: Findings, evidence: Evidence) -> None:
    for rule in rules:
        findings.say(findings.open & rule.holds(evidence), rule.category, rule.reason, rule.certainty)


def _follow_same_stack(findings: Findings, evidence: Evidence) -> None:
    """What the end of the trace cut off is what all others of its stack were, if they agree."""
    cut_off = is_among(findings.reason, _CUT_OFF) & evidence.never_freed & evidence.begun
    rows = np.flatnonzero(cut_off)
    # One call of an operator casts a weight and an activation, so its stack does not say which is which.
    tells_nothing = cut_off | (findings.reason == Reason.AUTOCAST_KEPT)
    others = np.where(tells_nothing, Category.UNKNOWN, findings.category).astype(np.uint8)
    like = agreed(evidence.stack, others, evidence.stack[rows])
    # A block that is never freed is no temporary, whatever others were.
    known = (like != Category.UNKNOWN) & (like != Category.TEMPORARY)
    findings.say(rows[known], like[known], Reason.SAME_STACK, Certainty.SURE)


def _follow_free(findings: Findings, device: DeviceTrace) -> None:
    """What a step leaves behind is a parameter if it is freed where the first parameters were."""
    first = np.flatnonzero(is_among(findings.reason, (Reason.BUILD_KEPT, Reason.OPTIMIZER_BUILD_KEPT)))
    rows = np.flatnonzero(findings.reason == Reason.STEP_KEPT)
    like = freed_like(device, findings.category, first, rows)
    findings.say(rows[like == Category.PARAMETER], Category.PARAMETER, Reason.REPLACED, Certainty.SURE)
