"""Every sentence that Explore may say of a device, held to its series and tables."""

from __future__ import annotations

from memviz.analysis.annotations import steps
from memviz.analysis.callstacks.sites import NO_SITE
from memviz.analysis.out_of_memory import out_of_memory
from memviz.analysis.peak import peak
from memviz.analysis.timeline import timeline
from memviz.headlines.headline import Headline
from memviz.trace.model import Action, DeviceTrace, Trace
from tests.headlines.claims import (
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
        rf"(?:, and (?P<share>{SHARE}) of it is (?P<kind>[a-z ]+))?\.",
    ),
    Form(
        "ran out",
        rf"(?:It|(?P<device>(?:Device|Pinned).*?)) ran out of memory"
        rf"(?:: | (?P<times>{COUNT} times?), at last when )(?P<asked>{SIZE}) were asked for(?: in (?P<site>.+))?\.",
    ),
    Form("state", rf"(?P<live>{SIZE}) are live(?: on (?P<device>{DEVICE}))?\."),
)
REASONS = (
    Form("before", r"It was there before the first event\."),
    Form("last", rf"It comes (?:in (?P<step>.+), )?at event (?P<event>{COUNT}), the (?P<which>last|only one)\."),
    Form("at", rf"It comes (?:in (?P<step>.+), )?at event (?P<event>{COUNT}); the last is event (?P<end>{COUNT})\."),
    Form("then", rf"(?P<live>{SIZE}) were live(?:, and (?P<unused>{SIZE}) reserved and not live)?\."),
    Form("no history", r"The file holds no history, only the state at its end\."),
    Form("quiet", r"Nothing happened there while the history was recorded; this is its state at the end\."),
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
        table = {each.label: each.bytes for each in peak(trace, device, "category").live.groups}
        if "kind" in claims:
            kind = _KINDS.get(claims["kind"], claims["kind"])
            kind = kind if kind in table else kind.removesuffix("s")
            check_share(claims["share"], table[kind], line.peak_bytes, kind)
            assert table[kind] == max(table.values()), f"{kind} is not the largest"
    elif claims.form == "ran out":
        failures = out_of_memory(trace, device)
        check_size(claims["asked"], failures[-1].asked_bytes, "what was asked")
        check_count(claims.claims.get("times", "1 time").split()[0], len(failures), "failures")
        site = failures[-1].site
        assert claims.claims.get("site", NO_SITE.label) == site, f"it was in {site}"
    else:
        check_size(claims["live"], line.end_bytes, "what is live")


def _reason(trace: Trace, device: DeviceTrace, claims: Read, said: Headline) -> None:
    line, last = timeline(device), len(device.events) - 1
    failures = out_of_memory(trace, device)
    if failures:
        assert claims.form == "then", "it ran out"
        check_size(claims["live"], failures[-1].then.live_bytes, "live")
        if "unused" in claims:
            then = failures[-1].then
            check_size(claims["unused"], then.reserved_bytes - then.live_bytes, "reserved and not live")
        return
    if last < 0:
        assert claims.form == ("quiet" if trace.event_count else "no history")
        return
    if claims.form == "before":
        assert line.live[0] == line.live.max() == line.peak_bytes, "the peak came later"
        return
    event = int(claims["event"].replace(",", ""))
    assert claims.form in ("at", "last") and 0 <= event <= last
    assert line.live[event + 1] == line.peak_bytes and line.live[: event + 1].max() < line.peak_bytes
    assert (claims.form == "last") == (event == last), f"the last event is {last}"
    if claims.form == "at":
        check_count(claims["end"], last, "the last event")
    else:
        assert (claims["which"] == "only one") == (last == 0)
    around = [each for each in steps(trace, device) if each.start_event <= event <= each.end_event]
    assert ("step" in claims) == bool(around), f"it comes in {around}"
    if around:
        is_late = bool(line.live[0] > 0 or line.reserved[0] > 0)
        assert claims["step"].startswith("recorded ") == (is_late and around[0].name.startswith("step "))
        assert claims["step"].removeprefix("recorded ") in {each.name for each in around}
        assert claims["step"] != "step 0", "people count from one"
