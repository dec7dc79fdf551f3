import pytest
import torch

from memviz.allocator import context
from memviz.allocator.context import context_on
from memviz.errors import UsageError
from memviz.predictor.cards import CARDS, NATIVE_SINCE, card_named, card_text, dtype_warnings
from memviz.predictor.device import PredictedDevice
from memviz.runner.plan import plan_of
from memviz.runner.request import Request, command_of


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("h200", "NVIDIA H200"),
        ("H20", "NVIDIA H20"),
        ("A100 40GB", "NVIDIA A100 40GB"),
        ("a100 80", "NVIDIA A100 80GB"),
        ("RTX 4090", "NVIDIA GeForce RTX 4090"),
        ("4090", "NVIDIA GeForce RTX 4090"),
        ("4090 laptop", "NVIDIA GeForce RTX 4090 Laptop GPU"),
        ("4060 ti", "NVIDIA GeForce RTX 4060 Ti"),
        ("NVIDIA L4", "NVIDIA L4"),
        ("l4", "NVIDIA L4"),
        ("t4", "Tesla T4"),
        ("NVIDIA T4", "Tesla T4"),
        ("a6000", "NVIDIA RTX A6000"),
        ("mi300x", "AMD Instinct MI300X"),
        ("A100-80GB", "NVIDIA A100 80GB"),
    ],
)
def test_a_card_is_found_by_a_part_of_its_name(text: str, name: str) -> None:
    assert card_named(text).name == name


def test_a_card_is_found_by_its_own_name_and_the_generation_of_its_capability() -> None:
    assert [card_named(card.name) for card in CARDS] == list(CARDS)
    assert len({card.name for card in CARDS}) == len(CARDS)
    assert [card.name for card in CARDS if context_on(card.name) is not _OF_CAPABILITY[card.capability]] == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("A100", "A100 80GB or A100 40GB"),
        ("rtx 6000", "RTX PRO 6000 Blackwell or RTX 6000 Ada Generation or RTX A6000"),
        ("h20o", "Unknown card 'h20o'"),
        ("", "Unknown card"),
        ("24", "Or give its memory, such as 48GiB"),
    ],
)
def test_a_name_that_says_too_little_is_refused(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        card_named(text)


def test_workspaces_follow_the_architecture() -> None:
    """Blackwell's are as large as Hopper's from torch 2.12 on; what another rule would give is another size."""
    small, large, amd = 8_519_680, 32 << 20, 128 << 20
    for card in CARDS:
        major = card.capability[0]
        now, before = (amd, amd) if card.is_amd else (large if major >= 9 else small, large if major == 9 else small)
        assert (card.cublas_workspace_in((2, 13)), card.cublas_workspace_in((2, 11))) == (now, before), card.name
        assert card.cublas_workspace_bytes == now, card.name


_SOLD = (4, 6, 8, 10, 11, 12, 16, 20, 24, 32, 40, 48, 80, 96, 141, 180, 192)


def test_each_card_has_a_little_less_than_a_size_that_is_sold() -> None:
    """The memory also matches the size in the card's name."""
    for card in CARDS:
        size = min(size for size in _SOLD if size >= card.memory_gib)
        assert 0.91 * size < card.memory_gib < size, card.name
        said = [int(word[:-2]) for word in card.name.split() if word.endswith("GB")]
        assert said in ([], [size], [480]), card.name


GiB = 1 << 30


def test_a_card_is_stated_by_its_memory_alone_or_with_another_memory() -> None:
    alone, other = card_named(card_text(None, "48 GB")), card_named(card_text("a100 40", "20000MiB"))
    assert (alone.name, alone.memory_bytes, alone.is_only_memory) == ("a card of 48 GiB", 48 * GiB, True)
    known = card_named("a100 40")
    assert (other.memory_bytes, other.model, other.is_only_memory) == (20000 << 20, known.name, False)
    assert (other.capability, other.multiprocessors) == (known.capability, known.multiprocessors)
    assert card_text("T4", "") == "T4" and card_text(None, None) == ""
    assert card_named(str(48 * GiB)) == alone


@pytest.mark.parametrize("text", ["4090", "80GB", "12GB"])
def test_a_part_of_a_name_is_no_memory(text: str) -> None:
    try:
        assert not card_named(text).is_only_memory
    except UsageError as error:
        assert "Choose one" in str(error)


@pytest.mark.parametrize(
    ("memory", "says"), [("much", "is not a size"), ("0", "more than 0"), ("9EiB", "more than any")]
)
def test_a_memory_that_is_none_is_refused(memory: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        card_text("T4", memory)


@pytest.mark.parametrize("card", ["T4", "48GiB", "RTX 4090, 48GiB", "NVIDIA H200"])
def test_the_command_states_the_same_card(card: str) -> None:
    words = command_of(Request("gpt2", card=card)).split(" --optimizer")[0]
    given = {flag: text.strip("'") for flag, _, text in (part.partition(" ") for part in words.split(" --")[1:])}
    stated = card_text(given.get("card"), given.get("memory"))
    assert plan_of(Request("gpt2", card=stated)).card == card_named(card)


def test_dtypes_without_native_support_are_warned_of() -> None:
    """NVIDIA's table of tensor cores: bf16 since Ampere, fp8 since Ada."""
    lacking = {
        name: len(dtype_warnings(NATIVE_SINCE, card_named(name))) for name in ("V100 32", "T4", "A100 80", "4090")
    }
    assert lacking == {"V100 32": 2, "T4": 2, "A100 80": 1, "4090": 0}
    assert dtype_warnings(["", "fp16", "fp32"], card_named("T4")) == ()
    (said,) = dtype_warnings(["bf16"], card_named("T4"))
    assert said.startswith("bf16 has no native support on Tesla T4 (compute capability 7.5; native since 8.0)")
    for name, count in (("T4", 1), ("A100 80", 0)):
        with PredictedDevice(card_named(name)) as device:
            torch.ones(4, device="cuda", dtype=torch.bfloat16)
            torch.ones(4, dtype=torch.float8_e4m3fn)
        assert len(device.warnings()) == count


_OF_CAPABILITY = {
    (7, 0): context.VOLTA,
    (7, 5): context.TURING,
    (8, 0): context.A100,
    (8, 6): context.AMPERE,
    (8, 9): context.ADA,
    (9, 0): context.HOPPER,
    (9, 4): context.UNKNOWN,
    (10, 0): context.BLACKWELL,
    (12, 0): context.BLACKWELL,
}
