import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memviz.trace.reserved import (
    LARGE_SEGMENT,
    NO_DIVISIONS,
    SLOTS,
    divisions_of,
    large_segment_of,
    max_split_size_of,
    round_sizes,
)

MiB = 1 << 20


def rounded(*sizes: int, divisions: tuple[int, ...] = NO_DIVISIONS) -> list[int]:
    return round_sizes(np.array(sizes), divisions).tolist()


def slots(**mib: int) -> tuple[int, ...]:
    """slots(m64=8) -> 8 divisions for sizes in [64, 128) MiB."""
    return divisions_of({"roundup_power2_divisions": {key[1:]: value for key, value in mib.items()}})


ALL_FOUR = (4,) * SLOTS
# What '[64:8,128:2,256:2,512:2,1024:1,>:1]' becomes: the first pair also fills the lower slots.
MIXED = (8,) * 7 + (2, 2, 2) + (1,) * 6


def test_a_slot_without_divisions_keeps_the_plain_rule() -> None:
    assert rounded(65 * MiB + 1, 129 * MiB + 1, divisions=slots(m64=8)) == [72 * MiB, 129 * MiB + 512]


def test_what_the_allocator_refuses_is_not_rounded() -> None:
    assert rounded(2**60 + 1, 2**62, divisions=ALL_FOUR) == [2**60 + 1, 2**62]


def by_hand(size: int, divisions: tuple[int, ...]) -> int:
    parts = divisions[min(max(size.bit_length() - 1 - 20, 0), SLOTS - 1)]
    step = 512
    if parts > 1 and size > 512 * parts:
        step = (1 << (size.bit_length() - 1)) // parts
    return max(512, -(-size // step) * step)


powers = st.sampled_from([0, 1, 2, 4, 8, 16, 32])


# Half of them beside a power of two, where the step changes.
sizes_beside = st.builds(lambda power, off: max(1, 2**power + off), st.integers(0, 58), st.integers(-1, 1))


@given(st.lists(st.integers(1, 2**59) | sizes_beside), st.lists(powers, min_size=SLOTS, max_size=SLOTS))
def test_it_agrees_with_the_rule_applied_one_size_at_a_time(sizes: list[int], parts: list[int]) -> None:
    assert rounded(*sizes, divisions=tuple(parts)) == [by_hand(size, tuple(parts)) for size in sizes]


@pytest.mark.parametrize("value", [None, 4, [4], {"1": "4", "2": 3, "4": -2, "8": 2**80, "16": True}])
def test_settings_that_pytorch_could_not_have_run_with_are_not_applied(value: object) -> None:
    assert divisions_of({"roundup_power2_divisions": value}) == NO_DIVISIONS


@pytest.mark.parametrize(("value", "limit"), [(-1, None), (2**64 - 1, None), (None, None), (128 * MiB, 128 * MiB)])
def test_an_unlimited_split_size_has_two_spellings(value: object, limit: int | None) -> None:
    assert max_split_size_of({"max_split_size": value}) == limit


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("", LARGE_SEGMENT),
        ("expandable_segments:True,large_segment_size_mb:64", 64 * MiB),
        ("large_segment_size_mb:0", LARGE_SEGMENT),
        ("large_segment_size_mb:9999999999999", LARGE_SEGMENT),
    ],
)
def test_the_large_segment_size_is_read_from_the_raw_settings(text: str, size: int) -> None:
    assert large_segment_of({"PYTORCH_CUDA_ALLOC_CONF": text}) == size
