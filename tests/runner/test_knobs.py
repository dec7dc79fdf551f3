"""Knobs: texts become a dataclass and back, and an error names the fault and the allowed values."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memviz.errors import UsageError
from memviz.runner.request import Knob, as_text, check_knobs, knob, knobs_of, parse_name_and_knobs, with_knobs
from memviz.text import nearest


@dataclass(frozen=True)
class Tuned:
    name: ClassVar[str] = "tuned"
    together: ClassVar[dict[str, tuple[str, ...]]] = {"resolution": ("height", "width")}

    height: int = knob(512, "how high", unit="pixels", least=1)
    width: int = knob(768, "how wide", unit="pixels", least=1)
    rate: float = knob(0.5, "a share")
    quick: bool = knob(False, "whether to hurry")
    word: str = knob("plain", "anything")
    kind: str = knob("a", "one of few", choices=("a", "b"))
    every: int | None = knob(None, "or none of it")
    storage: Literal["e4m3", "e5m2"] = "e4m3"
    function: Any = field(default=None, metadata={"python_only": True})

    def __post_init__(self) -> None:
        check_knobs(self)
        if self.height > 10_000:
            raise ValueError(f"height {self.height} is out of sight.")


def test_what_there_is_to_turn():
    assert knobs_of(Tuned)[:2] == (
        Knob("height", "int", False, 512, "how high", (), "pixels"),
        Knob("width", "int", False, 768, "how wide", (), "pixels"),
    )
    kinds = {each.name: (each.type, each.optional, each.default, each.choices) for each in knobs_of(Tuned)[2:]}
    assert kinds == {
        "rate": ("float", False, 0.5, ()),
        "quick": ("bool", False, False, ()),
        "word": ("text", False, "plain", ()),
        "kind": ("text", False, "a", ("a", "b")),
        "every": ("int", True, None, ()),
        "storage": ("text", False, "e4m3", ("e4m3", "e5m2")),
    }


def test_an_instance_shows_its_own_values():
    assert knobs_of(Tuned(height=3))[0].default == 3


def test_texts_become_values():
    texts = {"height": "1_024", "rate": "1e-3", "quick": "Yes", "word": " x y ", "kind": "b", "every": "4"}
    assert with_knobs(Tuned, texts) == Tuned(height=1024, rate=1e-3, quick=True, word="x y", kind="b", every=4)


@pytest.mark.parametrize(("text", "value"), [("true", True), ("ON", True), ("1", True), ("no", False), ("off", False)])
def test_ways_to_say_yes_and_no(text, value):
    assert with_knobs(Tuned, {"quick": text}).quick is value


@pytest.mark.parametrize("text", ["none", "None", ""])
def test_none_is_a_value_where_the_annotation_has_it(text):
    assert with_knobs(Tuned, {"every": text}).every is None


@pytest.mark.parametrize("text", ["256x384", "256 x 384", "256×384", "256X384"])
def test_one_word_turns_several_knobs(text):
    assert with_knobs(Tuned, {"resolution": text}) == Tuned(height=256, width=384)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (
            {"hieght": "1"},
            "tuned has no knob hieght. Did you mean height? There are height, width, rate, quick, word, kind, every, "
            "storage, resolution.",
        ),
        ({"height": "tall"}, "tuned: height is a whole number, as in 16 or 1_000; not 'tall'."),
        ({"height": "1.5"}, "tuned: height is a whole number, as in 16 or 1_000; not '1.5'."),
        ({"height": "none"}, "tuned: height is a whole number, as in 16 or 1_000; not 'none'."),
        ({"rate": "half"}, "tuned: rate is a number, as in 0.1; not 'half'."),
        ({"quick": "maybe"}, "tuned: quick must be true or false (yes, no, on, off), not 'maybe'."),
        ({"kind": "c"}, "tuned: kind cannot be c. There are a, b."),
        ({"storage": "e5m3"}, "tuned: storage cannot be e5m3. Did you mean e5m2? There are e4m3, e5m2."),
        ({"height": "-1"}, "tuned: height is -1; the minimum is 1."),
        ({"height": f"{1 << 41}"}, "tuned: height is 2199023255552; the maximum is 1,099,511,627,776."),
        ({"height": "20000"}, "tuned: height 20000 is out of sight."),
        ({"resolution": "512"}, "tuned: resolution is height x width, as in 512x768; not '512'."),
        ({"resolution": "5x6", "height": "5"}, "tuned: height is given more than once."),
    ],
)
def test_what_is_wrong_is_named(texts, message):
    with pytest.raises(UsageError) as caught:
        with_knobs(Tuned, texts)
    assert str(caught.value) == message


def test_a_field_for_python_takes_no_text():
    with pytest.raises(UsageError, match="no knob function"):
        with_knobs(Tuned, {"function": "print"})


def test_only_what_differs_is_written():
    assert as_text(Tuned()) == {}
    assert as_text(Tuned(every=2, quick=True)) == {"quick": "true", "every": "2"}
    assert as_text(Tuned(), everything=True)["every"] == "none"


@given(
    st.builds(
        Tuned,
        height=st.integers(1, 10_000),
        width=st.integers(1, 10_000),
        rate=st.floats(allow_nan=False),
        quick=st.booleans(),
        kind=st.sampled_from(["a", "b"]),
        every=st.none() | st.integers(-(1 << 40), 1 << 40),
        storage=st.sampled_from(["e4m3", "e5m2"]),
    ),
    st.booleans(),
)
def test_texts_come_back(made, everything):
    assert with_knobs(Tuned, as_text(made, everything=everything)) == made


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("checkpointing", ("checkpointing", {})),
        ("checkpointing:", ("checkpointing", {})),
        ("checkpointing:every=2,offload=true", ("checkpointing", {"every": "2", "offload": "true"})),
        (" checkpointing : every = 2 ", ("checkpointing", {"every": "2"})),
        ("checkpointing:skip=0,3,5,every=2", ("checkpointing", {"skip": "0,3,5", "every": "2"})),
        ("allocator:conf=a:True,b:[1:2,>:4]", ("allocator", {"conf": "a:True,b:[1:2,>:4]"})),
    ],
)
def test_a_name_with_its_knobs(text, parsed):
    assert parse_name_and_knobs(text) == parsed


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Write NAME or NAME:KNOB=VALUE,KNOB=VALUE; '' has no name."),
        (":every=2", "Write NAME or NAME:KNOB=VALUE,KNOB=VALUE; ':every=2' has no name."),
        ("checkpointing=2", "Write checkpointing:KNOB=2 to set a knob of it."),
        ("checkpointing:offload", "checkpointing: 'offload' has no value; write KNOB=VALUE."),
        ("checkpointing:every=2,every=3", "checkpointing: every is given more than once."),
    ],
)
def test_a_name_that_cannot_be_read(text, message):
    with pytest.raises(UsageError) as caught:
        parse_name_and_knobs(text)
    assert str(caught.value) == message


def test_the_nearest_spelling():
    assert (
        nearest("chekpointing", ["checkpointing", "split"])
        == " Did you mean checkpointing? There are checkpointing, split."
    )
    assert nearest("zzz", ["split"]) == " There is split."
    assert nearest("zzz", []) == " It has none."
