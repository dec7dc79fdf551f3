"""Texts from a trace stay text; axes of bytes are round and exact."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memviz.figures.theme import LONGEST, byte_axis, lines, plain, rows_axis

KiB, MiB, GiB = 1 << 10, 1 << 20, 1 << 30


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("forward", "forward"),
        ("<b>bold</b>", "&lt;b&gt;bold&lt;/b&gt;"),
        ('<a href="javascript:x">', '&lt;a href="javascript:x"&gt;'),
        ("&lt;", "&amp;lt;"),
        ("$x^2$", "&#36;x^2&#36;"),
        ("one\ntwo", "one\N{REPLACEMENT CHARACTER}two"),
        ("\u202egnp", "\N{REPLACEMENT CHARACTER}gnp"),
        ("\ud800", "\N{REPLACEMENT CHARACTER}"),
        ("", ""),
    ],
)
def test_text_is_shown_as_it_stands(text, shown):
    assert plain(text) == shown


@given(st.text())
def test_no_text_brings_markup(text):
    assert not set("<>$\n") & set(plain(text))
    plain(text).encode()


def test_a_long_text_keeps_its_tail_and_lines_and_rows_stand_one_under_the_other():
    shown = plain("x" * 1000 + "model.py:12")
    assert len(shown) == LONGEST
    assert shown.startswith("…")
    assert shown.endswith("model.py:12")
    assert lines(plain("a<br>"), "b") == "a&lt;br&gt;<br>b"
    assert rows_axis(["a", "a"])["tickvals"] == [0, 1]
    assert rows_axis(["a", "b", "c"])["range"] == [2.5, -0.5]


@pytest.mark.parametrize(
    ("top", "bottom", "texts"),
    [
        (0, 0, ["0 B"]),
        (3, 0, ["0", "1", "2", "3 B"]),
        (651 * MiB, 0, ["0", "200", "400", "600 MiB"]),
        (4 * GiB, 0, ["0", "1,000", "2,000", "3,000", "4,000 MiB"]),
        (12 * GiB, 0, ["0", "2.5", "5", "7.5", "10 GiB"]),
        (40 * MiB, -25 * MiB, ["−20", "0", "20", "40 MiB"]),
    ],
)
def test_an_axis_is_round_and_names_its_unit_once(top, bottom, texts):
    assert byte_axis(top, bottom)["ticktext"] == texts


# Beyond 2**53 a browser has no whole numbers to draw with.
@given(st.integers(0, 2**53))
def test_ticks_lie_between_zero_and_the_top(top):
    ticks = byte_axis(top)["tickvals"]
    assert ticks[0] == 0
    assert ticks[-1] <= top
    assert ticks == sorted(set(ticks))
    assert len(ticks) <= 6
