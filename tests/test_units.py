"""Words for bytes and seconds."""

import pytest

from memviz.units import (
    bytes_text,
    bytes_texts,
    count_text,
    delta_text,
    duration_text,
    parse_bytes,
    parse_seconds,
    percent_text,
    unit_text,
)

GiB = 1 << 30


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (8080, "7.89 KiB"),
        (1024 * 1024 - 1, "1.00 MiB"),
        (1023 * 1024, "1,023 KiB"),
        (40_000_000, "38.1 MiB"),
        (682_735_240, "651 MiB"),
        (1_205_862_400, "1,150 MiB"),
        (10 * GiB - 1, "10,240 MiB"),
        (12_426_629_128, "11.57 GiB"),
        (20 << 40, "20.00 TiB"),
        (-5000, "−4.88 KiB"),
    ],
)
def test_three_digits_and_one_unit(size: int, text: str) -> None:
    assert bytes_text(size) == text


def test_sizes_that_a_sentence_compares_have_one_unit() -> None:
    assert bytes_texts(7_085_000_000, 12_423_000_000, 0) == ["6.60 GiB", "11.57 GiB", "0.00 GiB"]
    assert bytes_texts(9_000 << 20, 40 << 20) == ["9,000 MiB", "40.0 MiB"]
    assert bytes_texts(42 << 20, 23 << 30) == ["42.0 MiB", "23.00 GiB"], "in GiB it would lose its digits"
    assert bytes_texts(0) == ["0 B"]


def test_a_change_shows_its_direction() -> None:
    assert [delta_text(each) for each in (0, 2048, -2048)] == ["+0 B", "+2.00 KiB", "−2.00 KiB"]


def test_counts_shares_and_durations() -> None:
    assert count_text(1234567) == "1,234,567"
    assert [percent_text(*each) for each in ((1, 0), (1, 3), (1, 200), (-1, 4))] == ["0 %", "33 %", "0.5 %", "−25 %"]
    little = [percent_text(share, 10_000) for share in (0, 4, 5, -4, 1_140_000)]
    assert little == ["0 %", "under 0.1 %", "0.1 %", "under 0.1 %", "11,400 %"]
    nearly = [percent_text(share, 10_000) for share in (9949, 9950, 9999, 10_000, 10_049, -9999)]
    assert nearly == ["99 %", "99.5 %", "99.9 %", "100 %", "100 %", "−99.9 %"]
    assert [duration_text(each) for each in (999, 34_700, 830_000, 2_500_000)] == [
        "999 µs",
        "34.7 ms",
        "830 ms",
        "2.50 s",
    ]


def test_names_of_units() -> None:
    assert [unit_text(1 << shift) for shift in (0, 10, 20, 30)] == ["B", "KiB", "MiB", "GiB"]


@pytest.mark.parametrize(
    ("text", "size"),
    [("24GiB", 24 * GiB), ("24G", 24 * GiB), ("512 MiB", 1 << 29), ("1.5k", 1536), ("7", 7), ("7B", 7)],
)
def test_sizes_are_understood(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "many", "-1", "1 parsec", "1e9"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_bytes(text)


def test_times_are_understood_and_nothing_else() -> None:
    assert [parse_seconds(text) for text in ("90", "90s", "1.5m", "10 min", "2H")] == [90, 90, 90, 600, 7200]
    for text in ("", "0", "-1", "soon", "inf", "10 d"):
        with pytest.raises(ValueError, match="is not a time"):
            parse_seconds(text)


@pytest.mark.parametrize("text", ["9EiB", "1" + "0" * 400, "99999999999PiB"])
def test_a_size_beyond_all_memory_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is more than any memory: the most is 4EiB"):
        parse_bytes(text)
    assert parse_bytes("4EiB") == 1 << 62
