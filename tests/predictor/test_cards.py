"""Cards by name and memory; several in one process: the card of each allocation, copies, peaks and verdicts."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import memviz
from memviz.allocator import context
from memviz.allocator.context import context_on
from memviz.errors import UsageError
from memviz.predictor.cards import CARDS, NATIVE_SINCE, card_named, card_text, dtype_warnings
from memviz.predictor.device import PredictedDevice
from memviz.runner.plan import plan_of
from memviz.runner.request import Request, command_of
from tests.predictor.rows import A100
from tests.second_process import predict


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


MIB = 1 << 20
SIDE = 1024
WEIGHT = 4 * MIB
WORKSPACE = A100.cublas_workspace_bytes


@pytest.fixture
def device() -> Iterator[PredictedDevice]:
    with PredictedDevice(A100, gpus=2) as predicted:
        yield predicted


def linear(card: int) -> nn.Linear:
    return nn.Linear(SIDE, SIDE, bias=False, device=f"cuda:{card}")


def stream_of(card: int) -> Any:
    kind: Any = torch.cuda.Stream
    return kind(card)


def allocated() -> list[int]:
    return [torch.cuda.memory_allocated(card) for card in range(torch.cuda.device_count())]


def test_two_layers_on_two_cards_have_a_peak_each() -> None:
    with PredictedDevice(A100, gpus=2) as device:
        first, second = linear(0), linear(1)
        x = torch.zeros(SIDE, SIDE, device="cuda:0")
        assert allocated() == [2 * WEIGHT, WEIGHT]
        second(first(x).to("cuda:1")).backward(torch.zeros(SIDE, SIDE, device="cuda:1"))
        assert first.weight.grad is not None and second.weight.grad is not None
        assert (first.weight.grad.device, second.weight.grad.device) == (first.weight.device, second.weight.device)
        # With x, and with a handle of cuBLAS in forward and one in backward on each card.
        assert allocated() == [3 * WEIGHT + 2 * WORKSPACE, 2 * WEIGHT + 2 * WORKSPACE]
        # First: weight, x, the gradient that came back, and that of the weight.
        assert torch.cuda.max_memory_allocated(0) == 4 * WEIGHT + 2 * WORKSPACE
        # Second: weight, input and output, and the gradients of all three.
        assert torch.cuda.max_memory_allocated(1) == 6 * WEIGHT + 2 * WORKSPACE
        trace = device.finish()
    assert [one.name for one in trace.devices] == ["0", "1"]
    addresses = [set(one.events.address.tolist()) for one in trace.devices]
    assert all(addresses) and not addresses[0] & addresses[1]


def test_a_copy_is_of_its_card_and_its_gradient_goes_back() -> None:
    with PredictedDevice(A100, gpus=3):
        one = torch.zeros(SIDE, SIDE, device="cuda:1", requires_grad=True)
        assert one.to("cuda:1") is one and one.cuda(1) is one
        other = one.to("cuda:2", torch.float16)
        assert allocated() == [0, WEIGHT, WEIGHT // 2] and other.device == torch.device("cuda", 2)
        target = torch.zeros(SIDE, SIDE, device="cuda")
        target.copy_(one)
        loss: Any = other.sum() + target.sum().to("cuda:2")
        loss.backward()
        assert one.grad is not None and one.grad.device == one.device
        like = torch.zeros(3).to(one)
        assert like.device == one.device and one.new_empty(0).device == one.device
        assert torch.zeros_like(one, device="cuda:2").device == torch.device("cuda", 2)
        assert torch.zeros(4, device="cuda:1", dtype=torch.int64).add_(2).to("cuda:2").tolist() == [2, 2, 2, 2]
        assert "device='cuda:1'" in repr(one)


def test_operators_on_two_cards_are_refused_in_torchs_words(device: PredictedDevice) -> None:
    one, other = (torch.zeros(8, 8, device=card) for card in ("cuda:0", "cuda:1"))
    sentence = "Expected all tensors to be on the same device, but found at least two devices, cuda:{} and cuda:{}!"
    with pytest.raises(RuntimeError, match=sentence.format(0, 1)):
        one @ other
    with pytest.raises(RuntimeError, match=sentence.format(1, 0)):
        other + one
    with pytest.raises(RuntimeError, match="cpu and cuda:1"):
        torch.zeros(8) + other
    assert torch.cat([torch.empty(0, device="cuda:0"), other]).device == other.device


def test_the_current_card_is_that_of_its_thread_and_block(device: PredictedDevice) -> None:
    assert (torch.cuda.device_count(), torch.cuda.current_device()) == (2, 0)
    with torch.cuda.device(1):
        assert torch.cuda.current_device() == 1 and torch.zeros(2, device="cuda").get_device() == 1
        assert torch.zeros(2).cuda().get_device() == torch.cuda.current_stream().device_index == 1
    assert torch.cuda.current_device() == 0
    with torch.cuda.stream(stream_of(1)):
        assert torch.cuda.current_device() == 1
    torch.cuda.set_device("cuda:1")
    assert torch.tensor([1.0], device="cuda").get_device() == 1
    with torch.device("cuda:0"):
        assert torch.zeros(2).get_device() == 0
    assert torch.Generator("cuda:1").device == torch.device("cuda", 1)
    one, other = (torch.cuda.get_device_properties(card) for card in range(2))
    assert one.name == other.name and one.uuid != other.uuid
    assert torch.cuda.mem_get_info(0)[1] == torch.cuda.mem_get_info(1)[1]
    torch.zeros(32 * MIB, dtype=torch.uint8, device="cuda:1")
    assert torch.cuda.mem_get_info(0)[0] - torch.cuda.mem_get_info(1)[0] >= 32 * MIB - 2 * MIB
    assert torch.cuda.max_memory_allocated(1) >= 32 * MIB > torch.cuda.max_memory_allocated(0)
    torch.cuda.reset_peak_memory_stats(1)
    assert torch.cuda.max_memory_allocated(1) < 2 * MIB
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved(1) == 0


def test_memory_of_another_stream_waits_on_its_own_card(device: PredictedDevice) -> None:
    def active_after(card: int) -> int:
        torch.cuda.synchronize(card)
        # A malloc completes the frees that wait no more.
        torch.zeros(1, device="cuda:1")
        return int(torch.cuda.memory_stats(1)["active_bytes.all.current"])

    taken = torch.zeros(WEIGHT, dtype=torch.uint8, device="cuda:1")
    taken.record_stream(stream_of(1))
    del taken
    assert [active_after(0), active_after(1)] == [WEIGHT, 0]


def test_optimizers_and_clipping_take_each_card_by_itself(device: PredictedDevice) -> None:
    layers = [linear(0), linear(1)]
    weights = [layer.weight for layer in layers]
    optimizer = torch.optim.AdamW(weights, lr=0.1)
    for weight in weights:
        weight.grad = torch.zeros_like(weight)
    assert torch.nn.utils.clip_grad_norm_(weights, 1.0).device == torch.device("cuda", 0)
    optimizer.step()
    # Weight, gradient and two states.
    assert [size // WEIGHT for size in allocated()] == [4, 4]
    assert {optimizer.state[weight]["exp_avg"].device == weight.device for weight in weights} == {True}
    layers[0].to("cuda:1")
    moved = layers[0].weight
    assert moved.grad is not None and (moved.device, moved.grad.device) == (torch.device("cuda", 1),) * 2
    assert [size // WEIGHT for size in allocated()] == [2, 6]


def test_copies_without_access_to_each_others_memory_take_buffers() -> None:
    geforce, kept = card_named("RTX 4090"), []
    for card in (A100, geforce):
        with PredictedDevice(card, gpus=2):
            source = torch.zeros(SIDE, SIDE, device="cuda:0")
            kept.append(source.t().to("cuda:1", torch.float16, memory_format=torch.contiguous_format))
            peaks = [torch.cuda.max_memory_allocated(number) for number in range(2)]
        # Of another dtype and order: on both cards a buffer of the source's dtype.
        more = [WEIGHT, WEIGHT] if card is geforce else [0, 0]
        assert peaks == [WEIGHT + more[0], WEIGHT // 2 + more[1]]


def test_data_parallel_takes_what_its_replicas_take(device: PredictedDevice) -> None:
    model = nn.DataParallel(nn.Sequential(linear(0), linear(0)))
    with torch.no_grad():
        out = model(torch.zeros(2 * SIDE, SIDE))
    assert out.device == torch.device("cuda", 0) and allocated()[0] == 2 * WEIGHT + WORKSPACE + 2 * WEIGHT
    # Replicas are gone; while the second layer ran there were two weights, and the activations of both layers.
    assert allocated()[1] == WORKSPACE
    assert torch.cuda.max_memory_allocated(1) == 2 * WEIGHT + WORKSPACE + 3 * WEIGHT
    del out
    model(torch.zeros(2 * SIDE, SIDE, device="cuda")).sum().backward()
    weights = list(model.parameters())
    assert all(weight.grad is not None and weight.grad.device == weight.device for weight in weights)
    # Weights and gradients stay on the first card, and a handle in forward and backward on each.
    assert allocated() == [4 * WEIGHT + 2 * WORKSPACE, 2 * WORKSPACE]


def test_replicas_of_small_weights_share_a_buffer(device: PredictedDevice) -> None:
    model = nn.DataParallel(nn.Linear(10, 10).cuda())
    before = torch.cuda.memory_stats(1)["allocation.all.allocated"]
    torch.nn.parallel.replicate(model.module, [0, 1])
    # One buffer for weight and bias.
    assert torch.cuda.memory_stats(1)["allocation.all.allocated"] - before == 1


def test_each_card_runs_out_by_itself_and_has_its_verdict() -> None:
    def fill() -> None:
        torch.zeros(MIB, dtype=torch.uint8, device="cuda:0")
        with pytest.raises(torch.OutOfMemoryError, match=r"GPU 1 has a total capacity of 14\.\d+ GiB"):
            torch.zeros(20 << 30, dtype=torch.uint8, device="cuda:1")

    done = memviz.predict(fill, card="T4", gpus=2)
    assert not done.fits() and done.fit_word() == "no" and done.out_of_memory == 1
    assert [one.fits() for one in done.gpus] == [True, False] and done.gpu == 1
    assert [one.peak_requested for one in done.gpus] == [MIB, 0]
    assert done.fits("A100 80GB") and done.gpus[0].fits("T4")


def test_what_several_cards_are_not_predicted_for_is_said() -> None:
    with pytest.raises(UsageError, match="1 to 16"):
        PredictedDevice(A100, gpus=17)
    with pytest.raises(UsageError, match="cannot be combined with compiled code"):
        PredictedDevice(A100, gpus=2, compiles=True)
    with PredictedDevice(A100, gpus=2), pytest.raises(UsageError, match=r"2 cards .*cuda:0 to cuda:1.*--gpus 3"):
        torch.zeros(1, device="cuda:2")


SCRIPT = """
import subprocess
import pynvml
import torch
torch.cuda.memory._record_memory_history()
first = torch.zeros(3 << 20, dtype=torch.uint8, device="cuda:0")
second = torch.zeros(64 << 20, dtype=torch.uint8, device="cuda:1")
torch.cuda.memory._dump_snapshot("own.pickle")
query = ["nvidia-smi", "--query-gpu=index,memory.used", "--format=csv,noheader,nounits"]
print(subprocess.run(query, capture_output=True, text=True, check=True).stdout.split())
used = [pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(card)).used for card in range(2)]
print((used[1] - used[0]) >> 20, pynvml.nvmlDeviceGetCount())
"""


def test_a_script_has_a_peak_verdict_and_history_for_each_card(tmp_path: Path) -> None:
    (tmp_path / "two.py").write_text(SCRIPT, encoding="utf-8")
    options = ("--gpus", "2", "--card", "T4", "--json", "-o", "two.pickle", "two.py")
    ran = predict(*options, folder=tmp_path)
    assert ran.returncode == 0, ran.stderr
    smi, nvml, line = ran.stdout.splitlines()
    figures: dict[str, Any] = json.loads(line)
    assert [one["peak_requested_bytes"] for one in figures["gpus"]] == [3 * MIB, 64 * MIB]
    assert [one["fits"] for one in figures["gpus"]] == [True, True] and figures["fits"] is True
    assert figures["peak_reserved_bytes"] == figures["gpus"][1]["peak_reserved_bytes"] == 64 * MIB
    assert "cuda:0" in ran.stderr and "cuda:1" in ran.stderr and "2 x " in ran.stderr
    # 20 MiB is the segment of 3 MiB.
    used_by_card = [int(used) for used in json.loads(smi.replace("'", '"'))[1::2]]
    assert nvml == "44 2" and used_by_card[1] - used_by_card[0] == 44
    for name in ("two.pickle", "own.pickle"):
        snapshot = pickle.loads((tmp_path / name).read_bytes())
        assert [len([e for e in rows if e["action"] == "alloc"]) for rows in snapshot["device_traces"]] == [1, 1]
        assert sorted(segment["device"] for segment in snapshot["segments"]) == [0, 1]
        assert [one.name for one in memviz.open(tmp_path / name).trace.devices] == ["0", "1"]


def test_device_map_parts_a_model_by_the_free_memory_of_each_card() -> None:
    pytest.importorskip("accelerate", reason="transformers parts a model with accelerate, which is not installed")
    from accelerate import dispatch_model, infer_auto_device_map
    from accelerate.utils import get_max_memory

    with PredictedDevice(A100, gpus=2, limited=True), torch.no_grad():
        model = nn.Sequential(*(nn.Linear(SIDE, SIDE, bias=False) for _ in range(4)))
        most = get_max_memory()
        assert {0, 1} <= set(most) and most[0] > 30 << 30
        parts = infer_auto_device_map(model, {0: 2 * WEIGHT + MIB, 1: 4 * WEIGHT})
        model = dispatch_model(model, parts)
        assert {weight.device.index for weight in model.parameters()} == {0, 1}
        held = allocated()
        assert sum(held) == 4 * WEIGHT and min(held) > 0
        assert model(torch.zeros(8, SIDE, device="cuda:0")).shape == (8, SIDE)


def test_a_saved_tensor_is_loaded_to_the_card_that_it_was_on(tmp_path: Path, device: PredictedDevice) -> None:
    file = tmp_path / "saved.pt"
    for saved in (torch.arange(4, device="cuda:1"), torch.randn(SIDE, device="cuda:1")):
        torch.save({"tensor": saved}, file)
        places = [None, "cuda:0", {"cuda:1": "cuda:0"}, {"cuda:0": "cpu"}, "cpu"]
        loaded = [torch.load(file, map_location=place)["tensor"].device for place in places]
        assert list(map(str, loaded)) == ["cuda:1", "cuda:0", "cuda:0", "cuda:1", "cpu"]


def test_lists_of_tensors_on_two_cards_are_taken_by_card(device: PredictedDevice) -> None:
    mixed = [torch.ones(2, device=f"cuda:{card}") for card in (1, 0, 1)]
    doubled = torch._foreach_mul(mixed, [1.0, 2.0, 3.0])
    torch._foreach_add_(mixed, mixed)
    assert [str(one.device) for one in doubled] == ["cuda:1", "cuda:0", "cuda:1"]
    assert [one.tolist() for one in doubled] == [[1, 1], [2, 2], [3, 3]]
    assert [str(one.device) for one in mixed] == ["cuda:1", "cuda:0", "cuda:1"]
