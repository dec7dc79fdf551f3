"""Every number in every sentence on real snapshots, held to a count of the raw events (`raw_counts`).

Each headline and each finding has to fit one of the forms here, so that a new sentence needs a new count.
"""

import re
from collections.abc import Callable

import pytest

from memviz.analysis.findings.ranking import findings
from memviz.analysis.overview import overview
from memviz.results.summary import trace_headline
from tests.real import FOLDER, read_once, real_files, requires_real
from tests.results.claims import COUNT, SHARE, SIZE, check_count, check_share, check_size
from tests.results.raw_counts import ACTIVE, Allocation, Raw, activations, layers, read_raw

FILES = sorted(path.name for path in real_files()) or ["none"]


def total(allocations: list[Allocation] | set[Allocation]) -> int:
    return sum(one.size for one in allocations)


def forwards(raw: Raw) -> list[tuple[int, int]]:
    """Return the first and last alloc of the forward pass of each training step."""
    found: list[tuple[int, int]] = []
    before = "step"
    for one in raw.allocations:
        kind = "backward" if one.in_backward else "step" if one.in_step else "forward" if one.in_forward else ""
        if one.start < 0 or not kind:
            continue
        if kind == "forward":
            found = [*found, (one.start, one.start)] if before == "step" else found
            if before == "forward" or before == "step":
                found[-1] = found[-1][0], one.start
        before = kind
    return found


# -- what a category holds at the peak


def parameters(raw: Raw) -> int:
    """Return the bytes allocated before the recording and never freed, without caches."""
    kept = (one for one in raw.live_after(raw.peak[1]) if one.start < 0 and one.end == len(raw.events))
    return total([one for one in kept if not one.is_workspace and not one.is_of_cache])


def optimizer_state(raw: Raw) -> int:
    """Return the bytes made by a step and never freed, or replaced by a step."""
    live = raw.live_after(raw.peak[1])
    made = [one for one in live if one.in_step and one.end == len(raw.events)]
    return total(made) + total([one for one in live if one.start < 0 and one.end < len(raw.events)])


def activations_without_backward(raw: Raw) -> int:
    """Return the bytes that a forward without backward saves, except its output."""
    made = [one for one in raw.live_after(raw.peak[1]) if one.start >= 0 and one.in_forward]
    return total([one for one in made if not one.is_workspace]) - made[-1].size


def temporaries(raw: Raw) -> int:
    live = raw.live_after(raw.peak[1])
    return total([one for one in live if one.in_backward and one.size > 4 and one.end < len(raw.events)])


def category(raw: Raw, name: str) -> int:
    if name == "activations" and not any(one.in_backward for one in raw.allocations) and raw.live[0] == 0:
        return activations_without_backward(raw)
    counts: dict[str, Callable[[Raw], int]] = {
        "activations": lambda raw: total(activations(raw)) + unseen(raw),
        "parameters": parameters,
        "optimizer state": optimizer_state,
        "temporary tensors": temporaries,
    }
    return counts[name](raw)


def unseen(raw: Raw) -> int:
    """A loss that was recorded without a stack."""
    live = (one for one in raw.live_after(raw.peak[1]) if one.start >= 0 and not one.frames)
    return total([one for one in live if one.size <= 4])


# -- the forms

PLACES = r"(?P<places>[\w.]+\.py:\d+.*?)"
LAYERS = rf"(?P<layers>{COUNT}) (?P<equal>equal )?layers"
WHEN = rf"(?P<step>(?:in .+?, )?)at event (?P<event>{COUNT}); the last is event (?P<last>{COUNT})\."
HEADLINES = (
    rf"The peak is (?P<peak>{SIZE}), and (?P<share>{SHARE}) of it is (?:probably )?(?P<kind>[\w ]+)\. "
    rf"(?:(?P<kept>{SHARE}) is kept by {PLACES}(?:, in {LAYERS})?\. )?It comes {WHEN}",
    rf"The peak is (?P<peak>{SIZE}), and (?P<share>{SHARE}) of it is (?:probably )?(?P<kind>[\w ]+)\. "
    r"It was there before the first event\.",
    rf"(?P<live>{SIZE}) are live\. The file holds no history, only the state at its end\.",
)


@pytest.mark.slow
@requires_real
@pytest.mark.parametrize("name", FILES)
def test_every_number_of_a_headline_is_counted_twice(name: str) -> None:
    raw, trace = read_raw(FOLDER / name), read_once(FOLDER / name)
    said = str(trace_headline(overview(trace, trace.devices[0])))
    claims = next((found for form in HEADLINES if (found := re.fullmatch(form, said))), None)
    assert claims is not None, f"no count knows this sentence: {said!r}"
    claimed = {key: value for key, value in claims.groupdict().items() if value is not None}
    peak, event = raw.peak
    if "live" in claimed:
        check_size(claimed["live"], raw.live[-1], "what is live at the end")
        assert not raw.events
        return
    check_size(claimed["peak"], peak, "the peak")
    check_share(claimed["share"], category(raw, claimed["kind"]), peak, claimed["kind"])
    if "event" not in claimed:
        assert event == -1
        return
    check_count(claimed["event"], event, "the event of the peak")
    check_count(claimed["last"], len(raw.events) - 1, "the last event")
    check_step(raw, claimed["step"], event)
    if "kept" in claimed:
        check_places(raw, claimed, peak)


def check_step(raw: Raw, words: str, event: int) -> None:
    """'in recorded step 1, right after its forward': steps are counted from one, by their forwards."""
    begun = [first for first, _ in forwards(raw) if first <= event]
    if number := re.search(r"(?:step|forward) (\d+)", words):
        # Where a recording shows no forward, all of it is one step.
        assert int(number[1]) == max(len(begun), 1), f"{words!r}: it is number {len(begun)}"
    assert ("recorded" in words) == (number is not None and raw.live[0] > 0)
    doing = [one for one in raw.allocations if 0 <= one.start <= event and one.frames][-1]
    phase = re.search(r"the (forward|backward|optimizer step)", words)
    if phase and any(one.in_backward or one.in_forward or one.in_step for one in (doing,)):
        now = "backward" if doing.in_backward else "optimizer step" if doing.in_step else "forward"
        assert phase[1] == now


def check_places(raw: Raw, claimed: dict[str, str], peak: int) -> None:
    """'softmax.py:14, :20 and linear.py:36' hold so much of the activations, and more than any other places."""
    has_backward = any(one.in_backward for one in raw.allocations)
    made = [one for one in raw.live_after(raw.peak[1]) if one.start >= 0 and one.in_forward and not one.is_workspace]
    held = activations(raw) if has_backward else made[:-1]
    by_place: dict[str, int] = {}
    for one in held:
        line = one.place.partition(" ")[0]
        by_place[line] = by_place.get(line, 0) + one.size
    named, file = [], ""
    for word in re.split(r", | and ", claimed["places"]):
        file = word.partition(":")[0] or file
        named.append(f"{file}:{word.partition(':')[2]}")
    assert named == sorted(by_place, key=lambda place: -by_place[place])[: len(named)]
    check_share(claimed["kept"], sum(by_place[place] for place in named), peak, "what those places keep")
    of_places = [one for one in held if one.place.partition(" ")[0] in named]
    if "layers" in claimed:
        count, is_equal, in_layers = layers(raw, of_places)
        check_count(claimed["layers"], count, "layers")
        assert len(in_layers) == len(of_places), "some of it lies outside of the layers"
        assert ("equal" in claimed) == is_equal


FINDINGS: dict[str, str] = {
    "activations": rf"(?P<size>{SIZE}) of the peak, (?P<share>{SHARE}), are (?:probably )?activations "
    rf"saved for backward(?:, (?P<part>{SIZE}) of it in {LAYERS})?\.",
    "kept_too_long": rf"(?P<size>{SIZE}) made in step (?P<step>\d+) by (?P<place>.+?) are live for most of the next "
    r"step’s forward, and freed only then\.",
    "large_temporary": rf"(?P<count>{COUNT}) temporaries of up to (?P<largest>{SIZE}) made by (?P<node>\w+) "
    rf"\(backward\) make the peak: without them, it would be (?P<size>{SIZE}) lower\.",
    "pinned_segments": rf"(?P<size>{SIZE}) lie free in (?P<count>{COUNT}) segment that cannot go back to the device "
    rf"when (?P<reserved>{SIZE}) are reserved: a block of (?P<block>{SIZE}) made by (?P<node>\w+) \(backward\) "
    r"lives on in it\.",
    "wider_copies": rf"(?P<size>{SIZE}) made by (?P<place>.+?) are probably copies into twice the precision: each time "
    r"a block of half the size is live beside it\.",
    "private_pools": rf"(?P<reserved>{SIZE}) are reserved in (?P<count>{COUNT}) private pools \(CUDA graphs, MemPool\) "
    rf"at the end, and (?P<live>{SIZE}) of it are live; nothing outside can use the rest\.",
}


@requires_real
@pytest.mark.parametrize("name", FILES)
def test_every_number_of_a_finding_is_counted_twice(name: str) -> None:
    raw, trace = read_raw(FOLDER / name), read_once(FOLDER / name)
    for finding in findings(trace, trace.devices[0]):
        claims = re.fullmatch(FINDINGS.get(finding.kind, ""), finding.sentence)
        assert claims is not None, f"no count knows this sentence: {finding.sentence!r}"
        CHECKS[finding.kind](raw, {key: value for key, value in claims.groupdict().items() if value is not None})


def check_activations(raw: Raw, claims: dict[str, str]) -> None:
    held = activations(raw)
    check_size(claims["size"], total(held) + unseen(raw), "activations at the peak")
    check_share(claims["share"], total(held) + unseen(raw), raw.peak[0], "activations")
    count, is_equal, in_layers = layers(raw, held)
    check_count(claims["layers"], count, "layers")
    check_size(claims["part"], total(in_layers), "what the layers hold")
    assert ("equal" in claims) == is_equal


def check_kept_too_long(raw: Raw, claims: dict[str, str]) -> None:
    steps = forwards(raw)
    number = int(claims["step"])
    (begin, _), (following, last) = steps[number - 1 : number + 1]
    after = steps[number + 1][0] if number + 1 < len(steps) else len(raw.events)
    inside = [one.start for one in raw.allocations if following <= one.start <= last]
    middle = inside[len(inside) // 2]
    late = [one for one in raw.allocations if begin <= one.start < following and middle < one.end < after]
    of_place = [one for one in late if one.place == claims["place"] and not one.in_backward]
    check_size(claims["size"], total(of_place), "what outlives its step")


def check_large_temporary(raw: Raw, claims: dict[str, str]) -> None:
    peak, event = raw.peak
    allocs_and_frees = [at for at, one in enumerate(raw.events) if one["action"] in ("alloc", "free_requested")]
    brief = [
        one for one in raw.allocations
        if one.has(claims["node"]) and one.size >= peak / 10
        and sum(one.start < at < one.end for at in allocs_and_frees) <= 8
    ]  # fmt: skip
    at_peak = [one for one in brief if one.live_after(event)]
    check_count(claims["count"], len(at_peak), "temporaries at the peak")
    check_size(claims["largest"], max(one.size for one in at_peak), "the largest of them")
    without = [
        live - total([one for one in brief if one.live_after(at - 1)]) for at, live in enumerate(raw.live)
    ]  # fmt: skip
    check_size(claims["size"], peak - max(without), "how much lower the peak would be")


def check_pinned_segments(raw: Raw, claims: dict[str, str]) -> None:
    """Check the pinned segments at the alloc with the most reserved bytes."""
    check_count(claims["count"], 1, "segments")
    most = max(raw.reserved)
    check_size(claims["reserved"], most, "what is reserved then")
    event = raw.reserved.index(most) - 1
    while raw.events[event]["action"] != "alloc":
        event += 1
    there = {one["addr"]: one["size"] for one in raw.events[: event + 1] if one["action"] == "segment_alloc"}
    blocks = [one for one in raw.live_after(event) if one.has(claims["node"])]
    idle = []
    for address, size in there.items():
        used = [one for one in raw.live_after(event) if address <= one.address < address + size]
        pins = [one for one in used if one in blocks]
        free = size - sum((one.size + 511) // 512 * 512 for one in used)
        if pins and 2 * free >= size and event not in [one.start for one in used]:
            idle.append(free)
            check_size(claims["block"], max(pins, key=lambda one: one.end).size, "the block in it")
    check_count(claims["count"], len(idle), "segments that are mostly free")
    check_size(claims["size"], sum(idle), "what lies free")


def check_wider_copies(raw: Raw, claims: dict[str, str]) -> None:
    copies = [one for one in raw.allocations if one.place == claims["place"] and one.has("at::_ops::_to_copy::call")]
    wider = []
    for copy in copies:
        beside = {one.size for one in raw.allocations if one.start < copy.start < one.end}
        if copy.size // 2 in beside and 2 * copy.size not in beside:
            wider.append(copy)
    most = max(total([one for one in wider if one.live_after(copy.start)]) for copy in wider)
    check_size(claims["size"], most, "copies at once")


def check_private_pools(raw: Raw, claims: dict[str, str]) -> None:
    private = [one for one in raw.segments if tuple(one.get("segment_pool_id", (0, 0))) != (0, 0)]
    check_size(claims["reserved"], sum(one["total_size"] for one in private), "reserved in private pools")
    check_count(claims["count"], len({tuple(one["segment_pool_id"]) for one in private}), "private pools")
    live = [block["requested_size"] for one in private for block in one["blocks"] if block["state"] in ACTIVE]
    check_size(claims["live"], sum(live), "live in private pools")


CHECKS: dict[str, Callable[[Raw, dict[str, str]], None]] = {
    "activations": check_activations,
    "kept_too_long": check_kept_too_long,
    "large_temporary": check_large_temporary,
    "pinned_segments": check_pinned_segments,
    "wider_copies": check_wider_copies,
    "private_pools": check_private_pools,
}
