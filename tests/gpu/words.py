"""A result in one line, for whoever waits at the terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from memviz.units import bytes_text, count_text, delta_text

Found = Mapping[str, Any]


def in_a_line(part: str, result: Found) -> str:
    return _WORDS[part](result)


def _check(found: Found) -> str:
    wrong = [each for each in found["answers"] if not each["ok"]]
    good = f"{len(found['answers']) - len(wrong)} of {len(found['answers'])} as expected"
    first = "".join(f"; {each['what']}: {each['expected']}, got {each['got']}" for each in wrong[:1])
    return f"{good}{first}"


def _capture(found: Found) -> str:
    if found["ran_out"]:
        return "ran out of memory, and is kept as that"
    seconds = found.get("seconds")
    time = f", {1000 * seconds['median']:,.1f} ms a step" if seconds else ""
    live, reserved = found["peak_allocated_bytes"], found["peak_reserved_bytes"]
    return f"{bytes_text(live)} allocated, {bytes_text(reserved)} reserved{time}"


def _truth(found: Found) -> str:
    one, other = (found[name]["error_percent"] for name in ("allocated", "reserved"))
    return f"predicted {one:+.2f} % allocated, {other:+.2f} % reserved"


def _replay(found: Found) -> str:
    if found["exact"]:
        return f"exact, {count_text(found['addresses'])} addresses"
    return f"{count_text(found['addresses_off'])} of {count_text(found['addresses'])} addresses off; {found['first']}"


def _what_if(found: Found) -> str:
    if found["ran_out"]["measured"] or found["ran_out"]["predicted"]:
        return f"ran out: {_place(found['ran_out']['measured'])}; predicted: {_place(found['ran_out']['predicted'])}"
    measured, predicted = found["reserved"]["measured"], found["reserved"]["predicted"]
    return f"reserved {bytes_text(measured)}, predicted {delta_text(predicted - measured)}"


def _place(ran_out: Found | None) -> str:
    return "not" if ran_out is None else f"after {count_text(ran_out['served'])} requests"


def _seeds(found: Found) -> str:
    if "rows" in found:
        return f"{len(found['rows'])} rows"
    return ", ".join(f"{each['way']} {each['seconds']:.3g} s" for each in found["ways"][-2:])


def _seeds_predicted(found: Found) -> str:
    return f"{len(found['here'])} rows"


def _cost(found: Found) -> str:
    return ", ".join(f"{name} {ratio:.3f}" for name, ratio in found["ratio"].items())


def _samples(found: Found) -> str:
    return f"{found['bytes'] / 1000:,.0f} kB{'' if found['is_small'] else ', too large for a sample'}"


_WORDS: dict[str, Callable[[Found], str]] = {
    "check": _check,
    "capture": _capture,
    "what-if": _what_if,
    "seeds": _seeds,
    "cost": _cost,
    "replay": _replay,
    "truth": _truth,
    "seeds-predicted": _seeds_predicted,
    "samples": _samples,
}
