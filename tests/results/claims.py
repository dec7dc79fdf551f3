"""Parse the claims of a sentence: devices, bytes, shares, events and counts.

The law of a headline is a list of `Form`s, one for each sentence it may contain, and a function that checks the parsed
claims against the tables. A sentence that matches no form fails, so that every sentence is checked.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

SIZE = r"−?[\d,]+(?:\.\d+)? (?:B|KiB|MiB|GiB|TiB)"
SHARE = r"(?:under )?[\d,]+(?:\.\d)? %"
COUNT = r"[\d,]+"
DEVICE = r"(?:device \d+|pinned memory \(host\d+\))"
_UNITS = {"B": 0, "KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40}
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_NOUNS = (
    "event",
    "time",
    "allocation",
    "segment",
    "site",
    "block",
    "occasion",
    "free",
    "device",
    "row",
    "stack",
    "note",
)
_ONE_OF_MANY = re.compile(rf"(?<![\d,.:]) ?\b1 (?:{'|'.join(_NOUNS)})s\b")
_MANY_OF_ONE = re.compile(rf"(?<![\w.,:])(?!1 )[\d,]+ (?:{'|'.join(_NOUNS)})\b(?! of)")


@dataclass(frozen=True)
class Form:
    """A pattern for one sentence, whose groups are its claims."""

    name: str
    pattern: str

    def read(self, text: str) -> dict[str, str] | None:
        found = re.fullmatch(self.pattern, text, re.DOTALL)
        return {key: value for key, value in found.groupdict().items() if value is not None} if found else None


@dataclass(frozen=True)
class Read:
    form: str
    claims: Mapping[str, str]

    def __getitem__(self, key: str) -> str:
        return self.claims[key]

    def __contains__(self, key: str) -> bool:
        return key in self.claims


def read(text: str, forms: Sequence[Form]) -> Iterator[Read]:
    """Yield every reading of the text, because function names may look like words of a sentence."""
    found = [Read(form.name, claims) for form in forms if (claims := form.read(text)) is not None]
    assert found, f"no law knows this sentence: {text!r}"
    yield from found


def holds(text: str, forms: Sequence[Form], check: Callable[[Read], None]) -> None:
    """True if it is true under one way to read it."""
    failures = []
    for way in read(text, forms):
        try:
            check(way)
        except AssertionError as error:
            failures.append(f"{way.form}: {error}")
        else:
            return
    raise AssertionError(f"false: {text!r}\n" + "\n".join(failures))


def says_size(words: str, count: int) -> bool:
    """Return True if the words are this many bytes, to their last digit."""
    number, _, unit = words.partition(" ")
    decimals = len(number.partition(".")[2])
    scale = 1 << _UNITS[unit]
    exact, told = count / scale, float(number.replace(",", "").replace("−", "-"))
    return abs(told - exact) <= 0.5 * 10**-decimals + 1e-9 * max(abs(exact), 1) and (count == 0) == (told == 0)


def check_size(words: str, count: int, what: str) -> None:
    assert says_size(words, count), f"{what} is said to be {words}; it is {count} B"


def check_share(words: str, part: int, whole: int, what: str) -> None:
    exact = 100 * part / whole if whole else 0.0
    if words == "under 0.1 %":
        assert 0 < abs(exact) < 0.05, f"{what} is said to be {words}; it is {exact} %"
        return
    number = words.removesuffix(" %")
    told = float(number.replace(",", ""))
    assert part == 0 or told != 0, f"{what} is not nothing"
    # A part is never shown as 100 %, however little is missing.
    assert told != 100 or part >= whole, f"{what} is not all"
    least = 0.1 if told == 99.9 else 0.05 if "." in number else 0.5
    assert abs(told - exact) <= least + 1e-9, f"{what} is said to be {words}; it is {exact} %"


def check_count(words: str, count: int, what: str) -> None:
    told = NUMBERS.index(words.lower()) if words.lower() in NUMBERS else int(words.replace(",", ""))
    assert told == count, f"{what} are said to be {words}; they are {count}"


def check_device(claims: Read, name: str, of: int, key: str = "device") -> None:
    """Named where there are several, and then the right one."""
    assert (key in claims) == (of > 1), f"of {of} devices it says {claims.claims.get(key)!r}"
    if key in claims:
        told = re.search(r"host\d+|\d+", claims[key])
        assert told is not None and told.group() == name, f"it names {claims[key]!r}; it is {name}"


def check_english(text: str) -> None:
    assert not _ONE_OF_MANY.search(text), f"one is not many: {text!r}"
    assert not _MANY_OF_ONE.search(text), f"many are not one: {text!r}"
    assert "  " not in text.strip("\n") or "\n" in text, f"two blanks: {text!r}"
    for wrong in ("None", "nan", " .", " ,", "no stack recorded."):
        assert wrong not in text, f"{wrong!r} in {text!r}"
    assert not re.search(r"(?<!\w)-0 ", text), f"a zero with a sign: {text!r}"
