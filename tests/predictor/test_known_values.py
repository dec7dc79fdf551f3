"""Small tensors keep known values on the predicted device: they equal those computed on the host."""

import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import one_hot

import memviz
from memviz.errors import UsageError
from memviz.predictor.assumptions import Assumption, Assumptions, sentences_of
from memviz.predictor.device import PredictedDevice
from tests import forked
from tests.facts import missing
from tests.predictor.rows import A100
from tests.predictor.test_unknown_values import WHOLE, there


def _written(x: Tensor) -> Tensor:
    x = x.clone()
    x[1:3] = 9
    x[x > 5] += 1
    x.view(2, 3)[:, 1].mul_(2)
    return x.index_fill_(0, torch.tensor([0], device=x.device), -1)


def _scattered(x: Tensor) -> Tensor:
    return torch.zeros(8, dtype=x.dtype, device=x.device).scatter_add_(0, x, torch.ones_like(x))


def _causal(x: Tensor) -> Tensor:
    mask = torch.full((6, 6), float("-inf"), device=x.device).triu(1)
    return torch.where(mask < 0, mask, x.float())


def _counted(x: Tensor) -> Tensor:
    x = x.clone()
    x += 2
    x.mul_(3)
    x[::2].neg_()
    return x.add_(x.sum())


MADE: dict[str, Callable[[Tensor], Any]] = {
    "counted in place": _counted,
    "turned in place": lambda x: torch.zeros(2, 3, device=x.device).t_().unsqueeze_(0).add_(x[0]),
    "arithmetic": lambda x: (x * 2 + 1) % 3,
    "a view written to": _written,
    "scattered": _scattered,
    "a mask": _causal,
    "masked": lambda x: x[x > 1],
    "places": lambda x: (x > 1).nonzero(),
    "unique": lambda x: torch.unique(x, return_counts=True)[1],
    "sorted": lambda x: x.float().sort(descending=True).indices,
    "a schedule": lambda x: torch.linspace(1, 0, 7, device=x.device).cumprod(0)[x],
    "positions": lambda x: torch.arange(6, device=x.device)[None, :] >= x[:, None],
    "lengths": lambda x: torch.ones(6, device=x.device).repeat_interleave(x),
    "one hot": lambda x: torch.nn.functional.one_hot(x).sum(0),
    "cast": lambda x: x.to(torch.bfloat16).to(torch.uint8),
    "seen as": lambda x: x.view(torch.int32),
    "joined": lambda x: torch.cat([x, x.flip(0)]).view(3, 4).t().contiguous(),
    "complex": lambda x: torch.view_as_real(
        torch.polar(torch.ones(6, device=x.device), x.float()).conj().resolve_conj()
    ),
    "copied": lambda x: torch.empty(6, device=x.device).copy_(x),
    "filled": lambda x: torch.empty_like(x).fill_(x.max()),
    "given out": lambda x: torch.add(x, 1, out=torch.empty_like(x)),
    "made there": lambda x: torch.tensor([[1, 2], [3, 4]], device=x.device) @ x[:2],
    "new": lambda x: x.new_tensor([1, 2]) + x.new_full((2,), 3),
}


@pytest.mark.parametrize("way", MADE)
def test_values_are_what_the_host_computes(way: str) -> None:
    start = [3, 0, 2, 1, 0, 2]
    expected = MADE[way](torch.tensor(start))
    with PredictedDevice(A100) as device:
        found = MADE[way](torch.tensor(start).to("cuda"))
        assert found.is_cuda and found.shape == expected.shape and found.dtype == expected.dtype
        assert found.tolist() == expected.tolist() == found.cpu().tolist()
        assert MADE[way](torch.tensor(start)).tolist() == expected.tolist()
        assert not device.recorder.assumptions.stated


def test_what_meets_unknown_values_loses_its_own_unless_they_do_not_matter(device: PredictedDevice) -> None:
    known, drawn = torch.zeros(4, device="cuda"), torch.rand(4, device="cuda")
    known[0] = drawn[0]
    assert "values unknown" in repr(known) and "values unknown" in repr(torch.ones(4, device="cuda") * drawn)
    known.zero_()
    assert known.tolist() == [0, 0, 0, 0]
    known.normal_()
    assert "values unknown" in repr(known)
    assert torch.empty_like(known).tolist() == [0, 0, 0, 0]
    assert torch.zeros_like(drawn).tolist() == [0, 0, 0, 0]
    assert not device.recorder.assumptions.stated
    drawn = torch.rand(3, device="cuda") > 0.5
    done = drawn | torch.ones(3, dtype=torch.bool, device="cuda")
    assert done.all() and (torch.ones(3, dtype=torch.long, device="cuda") & ~done).max() == 0


def test_many_alike_values_are_known_and_take_no_memory(device: PredictedDevice) -> None:
    x = torch.arange(1000, device="cuda")
    assert device.allocated_bytes == 8192
    y = x[x > 499]
    del x
    assert device.allocated_bytes == 4096
    assert y.tolist() == list(range(500, 1000))
    many = torch.zeros(8192, device="cuda")
    many[:4096] = 0
    assert not many.any() and many.sum().item() == 0
    many[8190:] = 3
    assert many.sum().item() == 6 and many[:4].tolist() == [0, 0, 0, 0] and many[-1].item() == 3
    many.fill_(2)
    assert (many == 2).all() and many.view(2, -1).sum(1).tolist() == [8192, 8192]
    many[5].copy_(torch.tensor(7.0))
    assert many[4:7].tolist() == [2, 7, 2]
    mask = torch.ones(64, 1, 1024, 1024, dtype=torch.bool, device="cuda")
    assert mask.all() and not (~mask).any() and not (mask.float() * 2 != 2).any()
    mask[0, 0, 0, 0] = False
    assert "values unknown" in repr(mask)
    assert not device.recorder.assumptions.stated
    assert not mask.all()
    assert device.recorder.assumptions.stated


def test_large_tensors_of_the_host_take_no_memory_of_this_machine() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with PredictedDevice(A100) as device:
        torch.manual_seed(3)
        # Small ones have real numbers.
        assert sorted(torch.randperm(2_000_000).tolist()[:3]) != [0, 1, 2]
        weight = torch.nn.Linear(32768, 32768)
        torch.nn.init.normal_(weight.weight)
        torch.nn.init.trunc_normal_(weight.weight, std=0.02)
        assert device.allocated_bytes == 0
        weight.half().to("cuda")
        assert device.allocated_bytes == 2 * (32768 * 32768 + 32768)
        copied = torch.empty(8 << 30, dtype=torch.uint8, device="cuda").cpu()
        assert (copied + 1).sum().dtype == torch.int64
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < 1 << 28


_A_HOLE = """
import ctypes, resource
from tests.predictor.rows import A100
from memviz.predictor.device import PredictedDevice
import torch

library = ctypes.CDLL(None)
library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
library.free.argtypes = [ctypes.c_void_p]
M_MMAP_MAX = -4
library.mallopt(M_MMAP_MAX, 0)
hole, behind = library.malloc(4 << 30), library.malloc(1 << 20)
library.mallopt(M_MMAP_MAX, 65536)
library.free(hole)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with PredictedDevice(A100) as device:
    torch.nn.Linear(16384, 16384).half().to("cuda")
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""


_DYNAMO_WITHIN = """
import sys, torch
from tests.predictor.rows import A100
from memviz.predictor.device import PredictedDevice
with PredictedDevice(A100, as_process=True):
    torch.ones(1).cuda()
print("torch._dynamo" in sys.modules)
with PredictedDevice(A100):
    print((torch.tensor([3]).cuda() * 2).tolist(), "torch._dynamo" in sys.modules)
"""


def test_an_operator_may_be_the_first_to_import_dynamo() -> None:
    """torch compares the signatures of functions then, some of which the device has replaced."""
    done = forked.run(["-c", _DYNAMO_WITHIN], of=forked.light)
    assert (done.stdout.split("\n"), done.stderr) == (["False", "[6] True", ""], "")


@pytest.mark.skipif(not forked.CAN_FORK_RUNS, reason="asks glibc's heap")
def test_large_ones_take_no_memory_where_the_heap_of_a_long_running_process_has_a_hole_for_them() -> None:
    done = forked.run(["-c", _A_HOLE], of=forked.with_torch)
    assert not done.stderr
    assert int(done.stdout) < 128


@pytest.mark.parametrize("shape", [(1, 64), (64, 1), (8, 8)])
def test_orthogonal_weights_are_drawn_on_the_host(shape: tuple[int, int]) -> None:
    with PredictedDevice(A100):
        weight = torch.nn.init.orthogonal_(torch.empty(shape))
    short = weight if shape[0] <= shape[1] else weight.t()
    torch.testing.assert_close(short @ short.t(), torch.eye(len(short)))


READS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "index": lambda h, at: h[at],
    "gather": lambda h, at: h.gather(0, at[:, None].expand(-1, 4)),
    "index_select": lambda h, at: h.index_select(0, at),
    "embedding": lambda h, at: torch.nn.functional.embedding(at, h),
    "slice": lambda h, at: h[1:3],
    "select": lambda h, at: h[2],
    "diagonal": lambda h, at: h.diagonal(),
    "unfold": lambda h, at: h.unfold(0, 2, 1),
    "two paths": lambda h, at: h[at].sum() + (h * 3).sum(),
    "sparse": lambda h, at: torch.sparse.mm(
        torch.sparse_coo_tensor(at.repeat(2, 1), at.float(), (6, 6), check_invariants=False), h
    ),
}


@pytest.mark.parametrize("way", READS)
def test_a_gradient_has_its_own_values_or_none(way: str) -> None:
    def gradient(device: str, up: Callable[[Tensor], Tensor]) -> Tensor:
        h = torch.full((6, 4), 2.0, device=device, requires_grad=True)
        out = READS[way](h, torch.tensor([0, 0, 3], device=device))
        out.backward(up(out))
        assert h.grad is not None
        return h.grad

    with PredictedDevice(A100) as device:
        known = device.recorder.host.known
        found = gradient("cuda", torch.ones_like)
        values = known.of(found)
        assert values is None or torch.equal(values, gradient("cpu", torch.ones_like))
        unknown = gradient("cuda", lambda out: torch.rand(99, *out.shape, device="cuda").sum(0))
        assert unknown not in known


# Results whose length depends on values: the program or a rule states it.


LENGTHS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "bins": (lambda: torch.bincount(there(9, dtype=WHOLE)), lambda: torch.zeros(4, dtype=WHOLE)),
    "bins of weights": (
        lambda: torch.bincount(there(9, dtype=WHOLE), there(9).double()),
        lambda: torch.zeros(4).double(),
    ),
    "bins of the host": (lambda: torch.bincount(there(9, dtype=WHOLE).cpu()), lambda: torch.zeros(4, dtype=WHOLE)),
    "different": (lambda: there(3, 3).unique(), lambda: torch.zeros(4)),
    "where each went": (lambda: there(3, 3).unique(return_inverse=True)[1], lambda: torch.zeros(3, 3, dtype=WHOLE)),
    "how many of each": (
        lambda: there(9).unique_consecutive(return_counts=True)[1],
        lambda: torch.zeros(4, dtype=WHOLE),
    ),
    "rows": (lambda: there(5, 2).unique(dim=0), lambda: torch.zeros(4, 2)),
    "repeated": (lambda: there(2).repeat_interleave(there(2, dtype=WHOLE)), lambda: torch.zeros(4)),
}


@pytest.mark.parametrize("name", LENGTHS)
def test_a_length_that_nobody_computes_can_be_stated(name: str) -> None:
    ask, like = LENGTHS[name]
    line = ask.__code__.co_firstlineno
    with PredictedDevice(A100, assume={f"{Path(__file__).name}:{line}": 4}):
        found = ask()
        assert found.is_cuda is not name.endswith("the host")
        expected = like()
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype)


def test_bins_are_as_many_as_the_program_says_at_least(device: PredictedDevice) -> None:
    """A confusion matrix, as evaluations write it."""
    counted = torch.bincount(there(9, dtype=WHOLE).cpu() * 3, minlength=9).reshape(3, 3)
    assert (counted.shape, counted.is_cuda) == ((3, 3), False)
    (stated,) = device.recorder.assumptions.stated
    assert missing(stated.what, "counted values", "below 9") == []
    assert f"{Path(__file__).name}:" in stated.where


def test_what_is_counted_into_bins_falls_evenly_into_them(device: PredictedDevice) -> None:
    """Tokens per expert are assumed even, so that each part has a size; printed values stay unknown."""
    tokens, counts = torch.zeros(48, 4, device="cuda"), torch.bincount(there(48, dtype=WHOLE), minlength=8)
    assert [part.shape for part in tokens.split(counts.tolist())] == [(6, 4)] * 8
    assert counts.cpu().numpy().cumsum().tolist() == list(range(6, 54, 6))
    assert str(counts.tolist()) == str(["unknown"] * 8).replace("'", "")
    uneven = torch.bincount(there(50, dtype=WHOLE), minlength=8)
    assert [part.size(0) for part in torch.zeros(50, device="cuda").split(uneven.tolist())] == [7, 7, *[6] * 6]
    said = [stated.what for stated in device.recorder.assumptions.stated]
    assert any("counts as 6 in conditions" in what for what in said)


def test_a_recording_proves_no_size_that_is_assumed() -> None:
    assumed = memviz.predict(lambda: there(9)[there(9) > 0.5]).expected_error
    known = memviz.predict(lambda: there(9)[torch.arange(9, device="cuda") > 5]).expected_error
    assert known.not_covered == () and len(assumed.not_covered) == 1


def test_a_length_that_is_none_is_refused() -> None:
    def count() -> Any:
        return there(3).unique()

    place = f"{Path(__file__).name}:{count.__code__.co_firstlineno + 1}"
    with PredictedDevice(A100, assume={place: 0.5}), pytest.raises(UsageError, match="0.5"):
        count()


# Rows routed to experts: counts and selections give an even share, and printed values are unknown.


EXPERTS, TAKEN, ROWS = 8, 2, 48
EACH = ROWS * TAKEN // EXPERTS


def routed(rows: int = ROWS) -> Tensor:
    return there(rows, EXPERTS).topk(TAKEN, -1).indices


def zeros(*shape: int) -> Tensor:
    return torch.zeros(shape, device="cuda")


COUNTED: dict[str, Callable[[], Any]] = {
    "one_hot": lambda: one_hot(routed(), EXPERTS).sum((0, 1)).tolist(),
    "one_hot of all in a row": lambda: one_hot(routed().flatten(), EXPERTS).sum(0).cpu().tolist(),
    "scatter_": lambda: zeros(ROWS, EXPERTS).scatter_(1, routed(), 1).sum(0),
    "scatter of True": lambda: zeros(ROWS, EXPERTS).bool().scatter(1, routed(), True).sum(0),
    "scatter_add_": lambda: zeros(EXPERTS).scatter_add_(0, routed().flatten(), zeros(ROWS * TAKEN) + 1).tolist(),
    "index_add_": lambda: zeros(EXPERTS).index_add_(0, routed().flatten(), zeros(ROWS * TAKEN) + 1).tolist(),
    "histc": lambda: torch.histc(routed().float(), bins=EXPERTS, min=0, max=EXPERTS - 1).tolist(),
    "bincount": lambda: routed().flatten().bincount(minlength=EXPERTS).tolist(),
    "rows of one expert": lambda: [torch.where(routed() == expert)[0].numel() for expert in range(EXPERTS)],
    "rows by a mask": lambda: [
        there(ROWS, 4)[(routed() == expert).any(-1)].size(0) for expert in range(EXPERTS)
    ],
    "transformers' way": lambda: [
        torch.where(one_hot(routed(), EXPERTS).permute(2, 1, 0)[expert].squeeze(0))[0].numel()
        for expert in (one_hot(routed(), EXPERTS).permute(2, 1, 0).sum((-1, -2)) > 0).nonzero()
    ],
}  # fmt: skip


@pytest.mark.parametrize("way", COUNTED)
def test_each_expert_gets_its_share(way: str, device: PredictedDevice) -> None:
    assert [int(count) for count in COUNTED[way]()] == [EACH] * EXPERTS
    assert any(stated.where for stated in device.recorder.assumptions.stated)


def test_shares_add_up_go_on_and_print_as_unknown(device: PredictedDevice) -> None:
    counts = one_hot(routed(50), EXPERTS).sum((0, 1)).tolist()
    parts = zeros(100, 4).split(counts)
    assert [len(part) for part in parts] == [13] * 4 + [12] * 4
    seen = zeros(EXPERTS) + 3
    seen.scatter_add_(0, routed().flatten(), torch.ones(ROWS * TAKEN, device="cuda"))
    assert int(seen[0]) == 3 + EACH
    counts = one_hot(routed(), EXPERTS).sum((0, 1))
    assert str(counts.tolist()) == str(["unknown"] * EXPERTS).replace("'", "")
    assert str(counts.cpu().tolist()) == str(["unknown"] * EXPERTS).replace("'", "")
    assert "values unknown" in str(counts) and "values unknown" in str(counts.cpu())
    routed_to = torch.tensor([[0.1, 0.9], [0.2, 0.8], [0.7, 0.3]], device="cuda").argmax(-1)
    assert one_hot(routed_to, 2).sum(0).tolist() == [1, 2]


def test_an_expert_has_rows_and_a_text_has_no_end(device: PredictedDevice) -> None:
    """Each of few is chosen, and one word of many is not."""
    assert all(bool((routed() == expert).any()) for expert in range(EXPERTS))
    words = there(ROWS, 30_000).argmax(-1)
    assert not (words == 2).any() and len((words == 2).nonzero()) == 0
    assert int((words != 2).sum()) == ROWS


ACCEPTED: dict[str, tuple[Callable[[], Any], int]] = {
    "words that are the same": (lambda: (drafted() == drafted()).int().cumprod(-1).sum(), 0),
    "words before another": (lambda: ((~(drafted() == drafted())).cumsum(-1) < 1).sum(), 4),
    "the first that differs": (lambda: (drafted() != drafted()).float().argmax(), 0),
    "by chance": (lambda: (torch.rand(4, device="cuda") <= there(4) / there(4)).long().cumprod(-1).sum(), 4),
    "one by one": (lambda: sum(bool(torch.rand(1, device="cuda") <= there(1)) for _ in range(4)), 4),
    "numbers": (lambda: sum(torch.rand(1, device="cuda").item() <= there().item() for _ in range(4)), 4),
}


def drafted() -> Tensor:
    return there(4, 100).argmax(-1)


@pytest.mark.parametrize("way", ACCEPTED)
def test_how_much_of_a_draft_is_accepted_has_an_answer(way: str, device: PredictedDevice) -> None:
    ask, count = ACCEPTED[way]
    assert int(ask()) == count
    assert any(stated.where for stated in device.recorder.assumptions.stated)


# Notes of assumptions: equal ones are merged, with their lines and count.


DECIDES = "it decides as if it were {number}"


def test_one_line_that_asks_again_and_again_is_one_note_with_a_count() -> None:
    assumptions = Assumptions()
    for number in (5, 3, 8):
        assumptions.state(DECIDES, number)
    (stated,) = assumptions.stated
    assert stated.as_json() == {"where": stated.where, "what": "it decides as if it were 3 to 8", "times": 3}
    assert assumptions.sentences == (f"{stated.where} (3 times): it decides as if it were 3 to 8.",)


def test_lines_that_ask_alike_are_one_sentence() -> None:
    lines = [Assumption(f"train.py:{line}", "it is true") for line in (3, 5)]
    assert sentences_of(lines) == ["train.py:3 and train.py:5: it is true."]
    many = [Assumption(f"train.py:{line}", DECIDES, line, line, times=2) for line in range(1, 10)]
    first, last = sentences_of([*many, Assumption("", "Text goes on")])
    assert missing(first, "train.py:1, train.py:2, train.py:3 and 6 more", "(18 times)", "1 to 9") == []
    assert last == "Text goes on."
    assert Assumption("train.py:1", "{'a': {}} is used, as stated").what == "{'a': {}} is used, as stated"
