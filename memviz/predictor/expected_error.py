"""Expected error of a prediction, from recordings of its class on real cards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from memviz.units import bytes_text

NOTHING = "nothing"
"""Class of a program that allocates nothing on the card."""


@dataclass(frozen=True)
class ExpectedError:
    """Percent of the recorded bytes, above or below, that 95 % of the class do not exceed. None without recordings."""

    live: float | None
    allocated: float | None
    reserved: float | None
    recordings: int
    published: int
    """Number of peaks in public tables, of which only allocated bytes are known."""
    kind: str
    """The class: "training", "inference", or "nothing" where a program allocates nothing on the card."""
    not_covered: tuple[str, ...] = ()
    """Families of operators that neither recordings nor tables have: their rules are read in PyTorch's source."""
    not_counted: tuple[str, ...] = ()
    """Parts without any rule: the prediction is a lower bound."""
    least_growth: float = 0.0
    """Share by which a recorded peak exceeded the prediction because of uncounted parts."""
    like_card: bool = True
    """True if any recording is of a card with the same figures that PyTorch's rules look at."""
    uncounted_bytes: int | None = None
    """An estimate of the bytes that are not counted, of all kinds at once; None where no kind has an estimate."""
    estimates_all: bool = True
    elsewhere_bytes: int = 0
    """Reserved more, or less, where the driver orders segments' addresses the other way."""
    elsewhere: str = ""
    """Names of the platforms where it does."""

    @property
    def covered(self) -> bool:
        return self.like_card and not self.not_covered and not self.not_counted

    @property
    def share(self) -> float:
        """Widest known error, as a fraction instead of percent."""
        return max(self.live or 0.0, self.allocated or 0.0, self.reserved or 0.0) / 100

    @property
    def is_lower_bound(self) -> bool:
        return bool(self.not_counted)

    def reserved_interval(self, reserved: int) -> tuple[int, int]:
        """Bytes that a card may reserve, from the least to the most, where `reserved` are predicted."""
        more = max(round(self.least_growth * reserved), self.uncounted_bytes or 0)
        least, most = round(reserved * (1 - self.share)), round(reserved * (1 + self.share)) + more
        return least + min(0, self.elsewhere_bytes), most + self.more_elsewhere

    @property
    def more_elsewhere(self) -> int:
        return max(0, self.elsewhere_bytes)

    @property
    def sentence(self) -> str:
        if not self.elsewhere_bytes:
            return self._sentence
        change = f"{bytes_text(abs(self.elsewhere_bytes))} {'more' if self.elsewhere_bytes > 0 else 'less'}"
        return (
            f"{self._sentence} On {self.elsewhere}, where the driver orders segments differently, {change} is reserved."
        )

    @property
    def _sentence(self) -> str:
        if self.kind == NOTHING:
            return "Nothing is allocated on the card, so there is no expected error."
        if not self.recordings and not self.published:
            text = f"The expected error is unknown: no recording of {self._steps}."
            return f"{text} The peak is a lower bound: {self.uncounted_words}." if self.is_lower_bound else text
        without = f" excluding {_listed(self.not_covered)} (no recordings)" if self.not_covered else ""
        text = f"Expected error{without}: {self._figures} ({self._basis}{' like this' if self.covered else ''})."
        if self.is_lower_bound:
            bound = f"the peak is a lower bound ({'; '.join(filter(None, (self._figures, self._basis)))})"
            text = f"Expected error{without}: {bound}: {self.uncounted_words}."
        return text if self.like_card else f"{text} None was on a similar card."

    @property
    def uncounted_words(self) -> str:
        """Names of what is not counted, and by how much that may raise the peak."""
        if self.uncounted_bytes is None:
            size = "amount unknown"
        else:
            size = f"up to {bytes_text(self.uncounted_bytes)} (estimated)"
            size += "" if self.estimates_all else " and more without an estimate"
        grew = f"; one network reserved {100 * self.least_growth:.0f} % more" if self.least_growth else ""
        return f"{_listed(self.not_counted)} are not counted, {size}{grew}"

    @property
    def _figures(self) -> str:
        """With a lower bound the error has one side, as what is missing can only make a peak higher."""
        sign = "\N{MINUS SIGN}" if self.is_lower_bound else "±"
        figures = (("live", self.live), ("allocated", self.allocated), ("reserved", self.reserved))
        told = ((name, value) for name, value in figures if value or value is not None and not self.is_lower_bound)
        return ", ".join(f"{name} {sign} {_percent(value)}" for name, value in told)

    @property
    def _basis(self) -> str:
        counts = [f"{self.recordings} recorded {self._steps}"] if self.recordings else []
        tables = "1 peak in a public table" if self.published == 1 else f"{self.published} peaks in public tables"
        counts += [tables] if self.published else []
        return " and ".join(counts)

    @property
    def _steps(self) -> str:
        one, several = ("step", "steps") if self.kind == "training" else ("pass", "passes")
        return f"{'training' if self.kind == 'training' else 'forward'} {one if self.recordings == 1 else several}"

    def as_json(self) -> dict[str, Any]:
        as_dict = asdict(self)
        as_dict["class"] = as_dict.pop("kind")
        as_dict |= {"not_covered": list(self.not_covered), "not_counted": list(self.not_counted)}
        derived = {"covered": self.covered, "is_lower_bound": self.is_lower_bound, "sentence": self.sentence}
        return {**as_dict, **derived}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ExpectedError:
        names = ("live", "allocated", "reserved", "recordings", "published", "least_growth", "like_card")
        values = {**{name: value[name] for name in names}, "kind": value["class"]}
        values["uncounted_bytes"] = value.get("uncounted_bytes")
        values["estimates_all"] = value.get("estimates_all", True)
        values["elsewhere_bytes"] = value.get("elsewhere_bytes", 0)
        values["elsewhere"] = str(value.get("elsewhere", ""))
        listed: Any = {name: tuple(map(str, value[name])) for name in ("not_covered", "not_counted")}
        flags = ("like_card", "estimates_all")
        numbers = (value for name, value in values.items() if name not in ("kind", "elsewhere", *flags))
        are_flags = all(isinstance(values[name], bool) for name in flags)
        if not (isinstance(values["kind"], str) and are_flags and all(map(_is_number, numbers))):
            raise TypeError("not an expected error")
        return cls(**values, **listed)


def _is_number(value: object) -> bool:
    return value is None or isinstance(value, int | float) and not isinstance(value, bool)


def _percent(value: float) -> str:
    return f"{value:.2f} %" if 0 < value < 0.1 else f"{value:.1f} %"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


@dataclass(frozen=True)
class Fit:
    """Result of a replay with the card's memory: do the same requests succeed there?"""

    usable_bytes: int
    fits: bool
    peak_reserved_bytes: int
    """On the card; memory is given back under pressure, so it can be less than without a limit."""
    event: int | None
    """Event that runs out of memory."""
    requested_bytes: int | None
    allocated_bytes: int | None
    too_much_bytes: int
    """Bytes by which the peak without a limit exceeds the usable memory; negative if some is left."""
    overhead_bytes: int = 512 << 20
    """Memory of the card set aside for the CUDA context: 512 MiB in all older runs."""
    least_overhead_bytes: int | None = None
    """Lower bound of the context's memory, where an interval is known; `overhead_bytes` is the upper bound then."""
    fit: str = ""
    """"yes", "no", or "close" where what is not known exactly decides: the context, or the prediction itself."""

    @property
    def word(self) -> str:
        """Older runs only store `fits`."""
        return self.fit or ("yes" if self.fits else "no")

    @property
    def most_usable_bytes(self) -> int:
        """Usable memory if the CUDA context takes its minimum."""
        least = self.overhead_bytes if self.least_overhead_bytes is None else self.least_overhead_bytes
        return self.usable_bytes + self.overhead_bytes - least
