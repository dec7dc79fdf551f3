"""What a program says of an allocation itself: in metadata that torch keeps with it, or by the note around it."""

from __future__ import annotations

import re

import numpy as np

from memviz.analysis.annotations import annotated, annotation_of_events
from memviz.analysis.lifetimes import lifetimes
from memviz.analysis.purpose.findings import Findings
from memviz.analysis.purpose.reasons import Certainty, Reason
from memviz.trace.distinct import distinct
from memviz.trace.model import EMPTY_TEXT, Category, DeviceTrace, Trace

_WORDS = (
    (Category.KV_CACHE, r"kv.?cache|key.?value.?cache|past.?key"),
    (Category.OPTIMIZER_STATE, r"optimi[sz]er.?state|exp_avg|momentum"),
    (Category.GRADIENT, r"\bgrad(ient)?s?\b"),
    (Category.ACTIVATION, r"\bactivations?\b"),
    (Category.COLLECTIVE, r"all.?gather|all.?reduce|reduce.?scatter|all.?to.?all|\bnccl\b"),
    (Category.WORKSPACE, r"\bworkspace\b"),
    (Category.INPUT, r"\b(inputs?|batch)\b"),
    (Category.OUTPUT, r"\b(outputs?|logits)\b"),
    (Category.PARAMETER, r"\b(weights?|param(eter)?s?)\b"),
)
_PATTERNS = tuple((category, re.compile(words, re.IGNORECASE)) for category, words in _WORDS)


def say_metadata(findings: Findings, trace: Trace, device: DeviceTrace) -> None:
    texts = device.events.metadata
    if not (texts != EMPTY_TEXT).any():
        return
    start = lifetimes(device).start
    begun = np.flatnonzero(findings.open & (start >= 0))
    text = texts[start[begun]]
    for code in distinct(text[text != EMPTY_TEXT]).tolist():
        category = _meaning(trace.strings[code])
        if category is not Category.UNKNOWN:
            findings.say(begun[text == code], category, Reason.METADATA, Certainty.STATED)


def say_annotations(findings: Findings, trace: Trace, device: DeviceTrace) -> None:
    """A note says what goes on, not what all that is made meanwhile is for: no more than probable."""
    start, intervals = lifetimes(device).start, annotated(device).intervals
    begun = np.flatnonzero(findings.open & (start >= 0))
    if not len(intervals) or not len(begun):
        return
    around = annotation_of_events(device, start[begun])
    name = np.append(intervals.name, EMPTY_TEXT)[around]
    for code in distinct(name[name != EMPTY_TEXT]).tolist():
        category = _meaning(trace.strings[code])
        if category is not Category.UNKNOWN:
            findings.say(begun[name == code], category, Reason.ANNOTATED, Certainty.PROBABLE)


def _meaning(text: str) -> Category:
    return next((category for category, pattern in _PATTERNS if pattern.search(text)), Category.UNKNOWN)
