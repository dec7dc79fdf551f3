"""CUDA memory outside PyTorch's allocator, by kind of card."""

import pytest

from memviz.allocator import context
from memviz.allocator.context import A100, UNKNOWN, context_on, context_sentence
from tests.benchmarks.contexts import seen

GiB = 1 << 30
MiB = 1 << 20


@pytest.mark.parametrize(
    ("card", "expected"),
    [
        ("Tesla T4", context.TURING),
        ("Tesla V100-SXM2-32GB", context.VOLTA),
        ("NVIDIA A10G", context.AMPERE),
        ("NVIDIA RTX A6000", context.AMPERE),
        ("NVIDIA GeForce RTX 3080 Laptop GPU", context.AMPERE),
        ("NVIDIA L40S", context.ADA),
        ("NVIDIA RTX 6000 Ada Generation", context.ADA),
        ("NVIDIA H100 80GB HBM3", context.HOPPER),
        ("NVIDIA GH200 480GB", context.HOPPER),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", context.BLACKWELL),
        ("AMD Instinct MI300X", UNKNOWN),
        ("", UNKNOWN),
    ],
)
def test_a_card_is_of_a_generation_by_its_name(card: str, expected: context.CudaContext) -> None:
    assert context_on(card) is expected


def test_where_nothing_is_known_the_interval_takes_in_all_that_was_seen() -> None:
    assert (UNKNOWN.least_bytes, UNKNOWN.most_bytes) == (64 * MiB, A100.most_bytes)
    assert "not published" in context_sentence("AMD Instinct MI300X")


def test_the_intervals_are_those_of_the_public_readings() -> None:
    """nvidia-smi, which has readings for two generations, is more precise than PyTorch's messages."""
    shipped = {name: getattr(context, name.upper()) for name in (each.generation for each in seen())}
    assert len(shipped) == len(context.KNOWN)
    for each in seen():
        known = shipped[each.generation]
        assert known.least_bytes == each.least_mib * MiB
        by_driver = {"A100": 1792, "Volta": 1344}.get(each.generation, each.most_mib)
        assert known.most_bytes == by_driver * MiB >= each.most_mib * MiB
