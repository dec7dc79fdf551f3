"""Every possible sentence of Explore about a device, checked against its series and tables."""

import re

import numpy as np

from memviz.analysis.annotations import steps
from memviz.analysis.callstacks.sites import sites
from memviz.analysis.groups import group_rows
from memviz.analysis.lifetimes import lifetimes, live_rows
from memviz.analysis.peak import failed_requests, peak
from memviz.analysis.purpose.activity import Activity
from memviz.analysis.purpose.categories import KINDS, categories, kinds
from memviz.analysis.purpose.phases import activity_of_allocs
from memviz.analysis.purpose.reasons import Certainty
from memviz.analysis.timeline import timeline
from memviz.results.headline import Headline
from memviz.trace.model import Action, Category, DeviceTrace, Trace
from tests.results.claims import (
    COUNT,
    DEVICE,
    SHARE,
    SIZE,
    Form,
    Read,
    check_count,
    check_device,
    check_english,
    check_share,
    check_size,
    holds,
)

ANSWERS = (
    Form(
        "peak",
        rf"The peak(?: of (?P<device>{DEVICE}))? is (?P<peak>{SIZE})"
        rf"(?:, (?P<share>{SHARE}) of it (?P<probably>probably )?(?P<kind>[a-zA-Z ]+)"
        rf"|, (?P<made>{SHARE}) of it from (?P<place>.+))?\.",
    ),
    Form(
        "ran out",
        rf"(?:It|(?P<device>(?:Device|Pinned).*?)) ran out of memory"
        rf"(?:: | (?P<times>{COUNT} times?), the last time when )(?P<asked>{SIZE}) requested(?: in (?P<site>.+))?\.",
    ),
    Form("state", rf"(?P<live>{SIZE}) are live(?: on (?P<device>{DEVICE}))?\."),
)
_KEPT = rf"(?:(?P<kept>{SHARE}) is from (?P<places>.+?)(?:, in (?P<layers>{COUNT}) (?P<equal>equal )?layers)?\. )?"
REASONS = (
    Form("before", rf"{_KEPT}It was allocated before recording started\."),
    Form(
        "in step",
        rf"{_KEPT}Reached (?P<step>(?:in|at the end of) .+) \(event (?P<event>{COUNT}) of (?P<end>{COUNT})\)\.",
    ),
    Form("at", rf"{_KEPT}Reached at event (?P<event>{COUNT}) of (?P<end>{COUNT})\."),
    Form("then", rf"(?P<live>{SIZE}) were live(?:, and (?P<unused>{SIZE}) reserved but not live)?\."),
    Form("no history", r"The file has no history, only the final state\."),
    Form("quiet", r"No events were recorded there; this is the final state\."),
)
_KINDS = {"temporary tensors": "temporary"}


def check_explore(trace: Trace, device: DeviceTrace, said: Headline) -> None:
    holds(said.answer, ANSWERS, lambda claims: _answer(trace, device, claims))
    holds(said.reason, REASONS, lambda claims: _reason(trace, device, claims, said))
    check_english(str(said))


def _ran_out(device: DeviceTrace) -> bool:
    return bool((device.events.action == Action.OOM).any())


def _answer(trace: Trace, device: DeviceTrace, claims: Read) -> None:
    line = timeline(device)
    check_device(claims, device.name, len(trace.devices))
    expected = "ran out" if _ran_out(device) else "peak" if len(device.events) else "state"
    assert claims.form == expected, f"it is {expected}"
    if claims.form == "peak":
        check_size(claims["peak"], line.peak_bytes, "the peak")
        table = {group.label: group.bytes for group in peak(trace, device, "category").live.groups}
        if "kind" in claims:
            kind = _KINDS.get(claims["kind"], claims["kind"])
            kind = kind if kind in table else kind.removesuffix("s")
            check_share(claims["share"], table[kind], line.peak_bytes, kind)
            assert table[kind] == max(table.values()), f"{kind} is not the largest"
            assert ("probably" in claims) == _is_probable(trace, device, kind), f"how sure {kind} is"
        if "made" in claims:
            largest = peak(trace, device, "site").live.groups[0]
            check_share(claims["made"], largest.bytes, line.peak_bytes, largest.label)
    elif claims.form == "ran out":
        failures = failed_requests(trace, device)
        check_size(claims["asked"], failures[-1].requested_bytes, "what was asked")
        check_count(claims.claims.get("times", "1 time").split()[0], len(failures), "failures")
        site = failures[-1].site
        assert claims.claims.get("site", "") == site, f"it was in {site}"
    else:
        check_size(claims["live"], line.end_bytes, "what is live")


def _reason(trace: Trace, device: DeviceTrace, claims: Read, said: Headline) -> None:
    line, last = timeline(device), len(device.events) - 1
    failures = failed_requests(trace, device)
    if failures:
        assert claims.form == "then", "it ran out"
        check_size(claims["live"], failures[-1].live_bytes, "live")
        if "unused" in claims:
            then = failures[-1]
            check_size(claims["unused"], then.reserved_bytes - then.live_bytes, "reserved but not live")
        return
    if last < 0:
        assert claims.form == ("quiet" if trace.event_count else "no history")
        return
    if "kept" in claims:
        _check_kept(trace, device, claims)
    if claims.form == "before":
        assert line.live[0] == line.live.max() == line.peak_bytes, "the peak came later"
        return
    event = int(claims["event"].replace(",", ""))
    assert claims.form in ("at", "in step") and 0 <= event <= last
    assert line.live[event + 1] == line.peak_bytes and line.live[: event + 1].max() < line.peak_bytes
    check_count(claims["end"], last + 1, "events")
    _check_step(trace, device, event, claims.claims.get("step", ""))


def _is_probable(trace: Trace, device: DeviceTrace, kind: str) -> bool:
    """Return True if more than half of the bytes of this kind at the peak are only probable."""
    rows = live_rows(device, timeline(device).peak_event)
    said, size = categories(trace, device), lifetimes(device).size
    of_kind = rows[np.array([KINDS[code] == kind for code in kinds(trace, device, rows).tolist()], dtype=bool)]
    probable = of_kind[said.certainty[of_kind] == Certainty.PROBABLE]
    return bool(2 * size[probable].sum() > size[of_kind].sum())


def _check_kept(trace: Trace, device: DeviceTrace, claims: Read) -> None:
    """The places together hold that share of the peak in activations, and half of all activations."""
    rows = live_rows(device, timeline(device).peak_event)
    rows = rows[categories(trace, device).category[rows] == Category.ACTIVATION]
    groups = group_rows(trace, device, rows, "site").groups
    lines = re.findall(r":(\d+)", claims["places"])
    first = groups[: len(lines)]
    assert sorted(lines) == sorted(re.search(r":(\d+)", each.label)[1] for each in first), "other places hold more"
    share = sum(each.bytes for each in first)
    check_share(claims["kept"], share, timeline(device).peak_bytes, "what they keep")
    assert 2 * share >= sum(group.bytes for group in groups)
    # Of unequal layers, some have let go of more than others; `analysis/findings/test_every_number.py` counts those.
    if "equal" in claims:
        layers = int(claims["layers"].replace(",", ""))
        most = [group_rows(trace, device, rows_of(trace, device, rows, each.label), "size").groups for each in first]
        assert all(max(size.count for size in sizes) % layers == 0 for sizes in most), "layers differ"


def rows_of(trace: Trace, device: DeviceTrace, rows: np.ndarray, label: str) -> np.ndarray:
    table = sites(trace)
    stacks = lifetimes(device).stack[rows]
    return rows[[table.of(int(stack)).label == label for stack in stacks]]


def _check_step(trace: Trace, device: DeviceTrace, event: int, said: str) -> None:
    """The phase is that of the last allocation up to the peak that shows one; steps are counted from one."""
    around = {step.name for step in steps(trace, device) if step.start_event <= event <= step.end_event}
    doing = activity_of_allocs(trace, device)[: event + 1]
    shown = doing[np.isin(doing, (Activity.FORWARD, Activity.BACKWARD, Activity.STEP))]
    if not said:
        assert not around and not len(shown), f"it comes in {around or shown[-1]}"
        return
    assert "step 0" not in said, "people count from one"
    phase = re.match(r"in the (forward|backward|optimizer step)\b", said)
    names = {"forward": Activity.FORWARD, "backward": Activity.BACKWARD, "optimizer step": Activity.STEP}
    if phase:
        noted = {trace.strings[code] for code in device.annotations.name.tolist()}
        is_noted = phase[1] == "optimizer step" and any(name.startswith("Optimizer.step#") for name in noted)
        assert is_noted or names[phase[1]] in shown[-3:], f"nothing shows: {phase[1]}"
    elif said.startswith("at the end of forward"):
        assert shown[-1] == Activity.BACKWARD or Activity.BACKWARD in doing
        assert Activity.FORWARD in shown
    if "recorded " in said:
        line = timeline(device)
        assert line.live[0] > 0 or line.reserved[0] > 0, "it was recorded from its beginning"
