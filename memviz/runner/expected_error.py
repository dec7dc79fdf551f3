"""How true a prediction is likely to be: what recordings of its class, made on real cards, say of predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

_TRAINING = "training"


@dataclass(frozen=True)
class ExpectedError:
    """In percent of what was recorded, either way: the worst of the class. None where nothing was recorded."""

    live: float | None
    allocated: float | None
    reserved: float | None
    recordings: int
    """How many recordings these are of."""
    published: int
    """How many peaks of public tables beside them: of these only what was allocated is known."""
    kind: str
    """The class: "training" or "inference"."""
    not_covered: tuple[str, ...] = ()
    """Families of operators that neither recordings nor tables have: their rules are read in PyTorch's source."""
    not_counted: tuple[str, ...] = ()
    """What has no rule at all: the prediction is a lower bound."""
    least_growth: float = 0.0
    """By which share of it a peak is known to have come out higher where that is not counted."""
    like_card: bool = True
    """Whether any of them is of a card with the same figures that PyTorch's rules look at."""

    @property
    def covered(self) -> bool:
        return self.like_card and not self.not_covered and not self.not_counted

    @property
    def share(self) -> float:
        """Of what is reserved, as a share: of the widest that is known."""
        return max(self.live or 0.0, self.allocated or 0.0, self.reserved or 0.0) / 100

    @property
    def sentence(self) -> str:
        if not self.recordings and not self.published:
            return f"No recording of {self._steps} says how true this is likely to be."
        basis = f"{self._figures} on {self._basis}"
        said = f"Likely to be true to {basis} like this."
        if self.not_covered:
            said = f"No recording has {_listed(self.not_covered)}. Without that, predictions were true to {basis}."
        elif not self.covered:
            said = f"Likely to be true to {basis}."
        more = [f"{_capital(_listed(self.not_counted))} are not counted."] if self.not_counted else []
        more += ["None of these was on a card like this."] if not self.like_card else []
        return " ".join([said, *more])

    @property
    def _figures(self) -> str:
        named = (("live", self.live), ("allocated", self.allocated), ("reserved", self.reserved))
        said = [f"{name} ± {_percent(value)}" for name, value in named if value is not None]
        return ", ".join(said)

    @property
    def _basis(self) -> str:
        counts = [f"{self.recordings} recorded {self._steps}"] if self.recordings else []
        tables = "1 peak in a public table" if self.published == 1 else f"{self.published} peaks in public tables"
        counts += [tables] if self.published else []
        return " and ".join(counts)

    @property
    def _steps(self) -> str:
        word = "training step" if self.kind == _TRAINING else "forward pass"
        return word if self.recordings == 1 else {"training step": "training steps"}.get(word, "forward passes")

    def as_json(self) -> dict[str, Any]:
        as_dict = asdict(self)
        as_dict["class"] = as_dict.pop("kind")
        return {**as_dict, "covered": self.covered, "sentence": self.sentence}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ExpectedError:
        names = ("live", "allocated", "reserved", "recordings", "published", "least_growth", "like_card")
        known = {**{name: value[name] for name in names}, "kind": value["class"]}
        listed: Any = {name: tuple(map(str, value[name])) for name in ("not_covered", "not_counted")}
        numbers = (value for name, value in known.items() if name not in ("kind", "like_card"))
        if not (
            isinstance(known["kind"], str) and isinstance(known["like_card"], bool) and all(map(_is_number, numbers))
        ):
            raise TypeError("not an expected error")
        return cls(**known, **listed)


def _is_number(value: object) -> bool:
    return value is None or isinstance(value, int | float) and not isinstance(value, bool)


def _percent(value: float) -> str:
    return f"{value:.2f} %" if 0 < value < 0.1 else f"{value:.1f} %"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _capital(text: str) -> str:
    """cuDNN keeps its own."""
    return text if text.startswith("cuDNN") else f"{text[0].upper()}{text[1:]}"
