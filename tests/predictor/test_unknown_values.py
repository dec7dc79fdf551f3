"""Reads of values without data: refused with the user's line, or answered by a stated substitute."""

import copy
import math
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from memviz.errors import UsageError
from memviz.predictor import assumptions, questions
from memviz.predictor.assumptions import DataNeeded, UnknownNumber, WrongAnswer
from memviz.predictor.device import PredictedDevice
from tests.facts import missing
from tests.predictor.rows import A100

WHOLE = torch.long


def there(*shape: int, dtype: torch.dtype | None = None) -> Tensor:
    """Return a tensor computed on the GPU, whose values are unknown."""
    made = torch.rand((*shape, 2), device="cuda") @ torch.rand(2, device="cuda")
    return made if dtype is None else made.to(dtype)


REFUSED: dict[str, Callable[[], Any]] = {
    "int": lambda: int(there(dtype=WHOLE)),
    "a count is a size": lambda: range(there(dtype=WHOLE).item()),
    "a count ends a slice": lambda: [1, 2][: there(dtype=WHOLE).item()],
    "an end of a slice": lambda: [1, 2][: there(dtype=WHOLE)],
    "a count of copies": lambda: [1, 2] * there(dtype=WHOLE).item(),
    "range": lambda: range(there(dtype=WHOLE)),
    "bincount": lambda: torch.bincount(there(3, dtype=WHOLE)),
    "repeat_interleave": lambda: there(3).repeat_interleave(there(3, dtype=WHOLE)),
    "one_hot": lambda: functional.one_hot(there(3, dtype=WHOLE)),
    "arange": lambda: torch.arange(there(dtype=WHOLE)),
    "arange by a number": lambda: torch.arange(there().item()),
    "tensor_split": lambda: torch.tensor_split(there(9), there(2, dtype=WHOLE).cpu()),
    "lengths": lambda: nn.utils.rnn.pack_padded_sequence(there(3, 4), there(4, dtype=WHOLE).cpu()),
    "dlpack": lambda: torch.from_dlpack(there(3).cpu()),
    "the older dlpack": lambda: torch.utils.dlpack.to_dlpack(there(3)),
    "the older dlpack of the host": lambda: torch.to_dlpack(there(3).cpu()),
    "lines of the storage": lambda: there(3).cpu().untyped_storage().tolist(),
}


@pytest.mark.parametrize("way", REFUSED)
def test_what_needs_values_is_refused_with_the_users_own_line(way: str, device: PredictedDevice) -> None:
    with pytest.raises(DataNeeded, match=r"test_unknown_values\.py, line \d+: `") as raised:
        REFUSED[way]()
    assert "lambda: " in str(raised.value)
    assert str(raised.value).endswith(".")


def stated(device: PredictedDevice) -> list[str]:
    """Return the stated assumptions, each with a line of this file."""
    found = [each for each in device.recorder.assumptions.stated if each.where]
    assert all("test_unknown_values.py:" in each.where for each in found)
    return [each.what for each in found]


@pytest.mark.parametrize("where", ["device", "host"])
def test_a_number_may_be_shown_and_added_up_and_that_is_stated(where: str, device: PredictedDevice) -> None:
    assert not stated(device)
    loss = there() if where == "device" else there().cpu()
    total = 0.0
    for _ in range(3):
        total += loss.item() / 2
    shown = [f"{total:.3f}", f"{loss:.3f}", str(round(total, 2)), f"{total:>9.2f}", repr(-total)]
    said = stated(device)
    assert shown == ["unknown", "unknown", "unknown", "  unknown", "unknown"]
    assert len(said) == 1
    assert missing(said[0], "prints as unknown", "counts as 1", "cannot be a size") == []
    assert isinstance(total, float) and type(total) is UnknownNumber
    assert copy.deepcopy([total])[0] is total and pickle.loads(pickle.dumps(total)).asked.words == total.asked.words


DECIDES = "a number that is not computed counts as 1.0 in a condition"
WHOLE_SLICE = "a slice up to a number that is not computed keeps its full length"
FIRST = "assumed to be the first"
DIFFERENT = "values that are not computed are assumed to be all different"
FINITE = "numbers that are not computed are assumed to be finite"
EVERYWHERE = "a mask that is not computed is assumed to be true everywhere"
TRUE = "a condition that is not computed is assumed to be True"
EQUAL = "tensors that are not computed are assumed to be equal"
NATURAL: dict[str, tuple[Callable[[], Any], Any, str]] = {
    "a number is compared": (lambda: there().item() < 3, True, DECIDES),
    "a number is whole": (lambda: int(there().item()), 1, DECIDES),
    "a whole number of a tensor": (lambda: int(there() * 10), 1, DECIDES),
    "a number rounded": (lambda: round(there().item()), 1, DECIDES),
    "a number floored": (lambda: math.floor(there().item() * 2), 1, DECIDES),
    "a slice": (lambda: there(9)[: there(dtype=WHOLE)].shape, (9,), WHOLE_SLICE),
    "a slice by a number": (lambda: there(2, 9)[0, there(dtype=WHOLE).item() :].shape, (9,), WHOLE_SLICE),
    "a slice of the host": (lambda: torch.ones(9)[: there(dtype=WHOLE).cpu()].shape, (9,), WHOLE_SLICE),
    "a token above another": (lambda: bool((there(4, 100).argmax(-1) > 5).any()), False, "assumed to be False"),
    "a token and a number": (lambda: max(32, there(4, 100).argmax(-1)[0]), 32, "assumed to be False"),
    "a drawn number": (lambda: 0 < torch.rand(1, device="cuda").item() < 1, True, "from seed 0"),
    "a drawn condition": (lambda: bool((torch.randn(8, device="cuda") > 0).any()), True, TRUE),
    "a drawn mean": (lambda: float(torch.randn(8, device="cuda").mean()), 1.0, "counts as 1"),
    "a drawn count": (lambda: int((torch.rand(8, device="cuda") > 0.5).sum()), 8, "counts as 8"),
    "the least": (lambda: min(there().item(), 0.5), 0.5, DECIDES),
    "finite": (lambda: math.isfinite(there().item()), True, "counts as 1"),
    "a tensor is compared": (lambda: bool(there() < 3), True, "is assumed to be True"),
    "not a number": (lambda: bool(torch.isnan(there(500, 3)).any()), False, FINITE),
    "all finite": (lambda: bool(there(3).isfinite().all()), True, FINITE),
    "infinite": (lambda: torch.isinf(there(3)).sum().item(), 0, FINITE),
    "a mask": (lambda: there(3)[there(3) > 0.5].shape, (3,), EVERYWHERE),
    "a mask of the host": (lambda: there(3)[there(3).cpu() > 0.5].shape, (3,), EVERYWHERE),
    "a mask on the host": (lambda: torch.ones(3)[there(3).cpu() > 0.5].tolist(), [1, 1, 1], EVERYWHERE),
    "two masks": (lambda: there(3, 2)[there(3, 2) > 0.5].shape, (6,), EVERYWHERE),
    "nonzero": (lambda: there(2, 2).nonzero().tolist(), [[0, 0], [0, 1], [1, 0], [1, 1]], EVERYWHERE),
    "where": (lambda: torch.where(there(3) > 0.5)[0].tolist(), [0, 1, 2], EVERYWHERE),
    "masked_select": (lambda: torch.masked_select(there(3), there(3) > 0.5).shape, (3,), EVERYWHERE),
    "a number of things decides": (lambda: there(dtype=WHOLE).item() > 3, False, DECIDES),
    "a count decides": (lambda: (there(3) > 0.5).sum().item() > 3, False, "counts as 3"),
    "an action": (lambda: ["left", "right"][there(2).argmax().item()], "left", FIRST),
    "a token": (lambda: torch.multinomial(there(5), 1).cpu().tolist(), [0], FIRST),
    "the best": (lambda: int(there(2, 5).topk(2).indices[0, 1]), 0, FIRST),
    "the place in a tensor": (lambda: torch.arange(3, 6)[there(3).argmax().cpu()].item(), 3, FIRST),
    "a row of the best": (lambda: there(3, 4)[there(3).argmax()].shape, (4,), FIRST),
    "unique": (lambda: [tuple(one.shape) for one in there(3).unique(return_counts=True)], [(3,), (3,)], DIFFERENT),
    "unique rows on the host": (lambda: there(3, 2).cpu().unique(dim=0).shape, (3, 2), DIFFERENT),
    "any": (lambda: bool((there(3) > 0.5).any()), True, TRUE),
    "any, as an item": (lambda: (there(3) > 0.5).any().item(), True, TRUE),
    "a comparison of the host": (lambda: bool(there().cpu() < 3), True, TRUE),
    "a comparison that does not hold": (lambda: bool(there().cpu() > 3), False, "assumed to be False"),
    "none below": (lambda: bool((there(3) < 0).any()), False, "assumed to be False"),
    "all of the host above": (lambda: bool((there(3).cpu() > 0).all()), True, TRUE),
    "the opposite": (lambda: bool(~(there().cpu() > 3)), True, TRUE),
    "any end yet": (lambda: bool(ended()), False, "assumed to be False"),
    "the end": (lambda: bool((there(4, 100).argmax(-1) == 5).all()), False, "assumed to be False"),
    "the end on the host": (lambda: bool((there(4, 100).argmax(-1).cpu() == 5).all()), False, "assumed to be False"),
    "not yet the end": (lambda: bool(~(there(4, 100).argmax(-1) != 5).all()), False, "assumed to be False"),
    "equal": (lambda: torch.equal(there(3), there(3)), True, EQUAL),
    "equal on the host": (lambda: torch.equal(there(3).cpu(), there(3).cpu()), True, EQUAL),
    "close": (lambda: torch.allclose(there(3), there(3)), True, EQUAL),
    "the largest": (lambda: int(there(3).argmax()), 0, FIRST),
    "a choice": (lambda: ["a", "b"][there(4).cpu().softmax(0).max(0).indices.item()], "a", FIRST),
    "tokens": (lambda: [{0: "a"}[t] for t in torch.multinomial(there(2, 9), 1).view(-1).tolist()], ["a", "a"], FIRST),
    "a place": (lambda: divmod_of(there(7, 5).argmax().item()), (0, 0), FIRST),
    "a count of a mask": (lambda: int((there(3) > 0.5).sum()), 3, "counts as 3"),
    "counts of rows": (lambda: list(map(int, (there(2, 3) > 0.5).sum(1).tolist())), [3, 3], "counts as 3"),
    "hits": (lambda: max(0.5, 100 * (there(3) > 0).cpu().sum().item() / 3), 1.0, DECIDES),
    "an element": (lambda: torch.arange(5)[there(3).argmax().cpu()].item(), 0, FIRST),
    "numpy": (lambda: there(3).cpu().numpy().tolist(), [0, 0, 0], "placeholders"),
    "numpy of the card": (lambda: there(3).numpy(force=True).shape, (3,), "placeholders"),
    "whether any counts": (lambda: bool(there(3, dtype=WHOLE).sum()), True, TRUE),
    "a number before": (lambda: bool(torch.add(1.0, torch.div(1.0, there(3))).isfinite().all()), True, "finite"),
}


def ended() -> Tensor:
    done = torch.zeros(3, dtype=torch.bool, device="cuda")
    done |= there(3, 9).argmax(-1) == 2
    done.logical_or_(there(3, 9).argmax(-1) == 5)
    return done.all()


def divmod_of(number: Any) -> tuple[int, int]:
    return int(number // 5), int(number % 5)


@pytest.mark.parametrize("way", NATURAL)
def test_a_natural_answer_is_given_and_stated_with_the_line(way: str, device: PredictedDevice) -> None:
    ask, answer, sentence = NATURAL[way]
    assert ask() == answer
    assert any(sentence in what for what in stated(device))


READS = pytest.mark.parametrize("read", [torch.Tensor.item, torch.Tensor.detach])


@READS
def test_a_loop_that_waits_for_a_value_to_change_is_stopped(
    read: Any, monkeypatch: pytest.MonkeyPatch, device: PredictedDevice
) -> None:
    def waits() -> bool:
        return bool(loss > 0.5)

    monkeypatch.setattr(assumptions, "_MOST_DECISIONS", 100)
    with pytest.raises(DataNeeded, match="would not end"):
        loss = read(there())
        while waits():
            pass


@READS
def test_a_loop_that_only_an_unknown_number_ends_has_an_end_that_is_stated(read: Any, device: PredictedDevice) -> None:
    steps = others = 0
    while read(there()) > 0.5:
        steps += 1
    while True:
        others += 1
        if read(there()) < 0.5:
            break
    assert steps == others > 1
    assert any(f"to end after {steps} passes" in sentence for sentence in stated(device))
    # One that has another end comes to it.
    while others < 3 * steps and read(there()) > 0.5:
        others += 1
    assert others == 3 * steps


class Counter:
    count = 0

    def next(self) -> int:
        self.count += 1
        return self.count


def wait_in_each_of(rounds: Any) -> None:
    for _ in rounds:
        while True:
            if there() > 0.5:
                break


def run_loops() -> None:
    with PredictedDevice(A100):
        loss, counter, batches, printed = there(), Counter(), iter(range(50)), 0
        while loss > 0.5 and counter.next() < 50:
            pass
        while loss > 0.5 and next(batches, None) is not None:
            pass
        for _ in zip(range(50), range(50), strict=True):
            assert loss > 0.5
        wait_in_each_of(there() for _ in range(50))
        with pytest.raises(DataNeeded, match="would not end"):
            while loss > 0.5:
                loss = there()
                printed += 1
        assert printed < 50


def test_a_loop_is_stopped_early_only_where_nothing_else_can_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "_SAMPLED_EVERY", 7)
    monkeypatch.setattr(assumptions, "_MOST_PASSES", 1000)
    # Loops of a test runner, which call this, could end it as well.
    with ThreadPoolExecutor(1) as alone:
        alone.submit(run_loops).result()


def test_a_user_states_the_answer_of_a_line_which_is_a_plain_number() -> None:
    def ask() -> Any:
        return int(there(4, dtype=WHOLE).sum()), bool((there(3) > 0.5).any()), there(9)[there(9) > 0.5].shape

    first = ask.__code__.co_firstlineno + 1
    with PredictedDevice(A100, assume={f"predictor/test_unknown_values.py:{first}": 1}) as device:
        assert ask() == (1, 1, (1,))
        assert stated(device) == ["1 is used, as stated"]
    with PredictedDevice(A100, assume={f"other.py:{first}": 1}), pytest.raises(DataNeeded) as raised:
        ask()
    assert raised.value.where == f"tests/predictor/test_unknown_values.py:{first}"
    assert f"--assume {raised.value.where}=VALUE" in str(raised.value)

    # Loggers look at `type(value)`.
    def ask() -> Any:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record(), end.record(), torch.cuda.synchronize()
        took, loss = begin.elapsed_time(end), there().item()
        return took, loss

    file = Path(__file__).name
    with PredictedDevice(A100, assume={f"{file}:took": 2, f"{file}:loss": 0}) as device:
        assert [repr(number) for number in ask()] == ["2.0", "0.0"] and not device.recorder.assumptions.unused


# Compiled apart: pytest writes other code for an assert of its own.
CHECKS = """
assert (x > 2).all(), "too small"
assert not (x > 2).any() and (x < 2).all().item()
assert x.sum().item() > 50
assert (x > 2).sum().item()
if (x > 2).sum().item():
    raise ValueError(f"{x}")
if not (x > 2).all():
    raise ValueError(f"{x}")
branch = bool((x > 2).all())
"""


def test_a_condition_is_answered_so_that_the_program_goes_on(device: PredictedDevice) -> None:
    names = {"x": there(3)}
    exec(compile(CHECKS, __file__, "exec"), names)
    says = stated(device)
    assert names["branch"] is False
    assert {f"a condition that is not computed is assumed to be {answer}" for answer in (True, False)} <= {*says}


def test_choices_are_counted_up_to_the_greatest_of_all(device: PredictedDevice) -> None:
    labels = torch.tensor([0, 0, 3, 3, 7]).cuda()
    chosen = labels[there(5).topk(3).indices]
    drawn = torch.randint(0, 40, (2, 300), device="cuda")
    assert [int(chosen.max()) + 1, int(torch.cat([drawn[0], chosen]).amax())] == [8, 39]
    choices = torch.rand(64, 10, device="cuda").argmax(1)
    assert torch.bincount(choices).shape == (10,)


def test_an_element_of_a_list_is_the_first_unless_another_is_stated() -> None:
    def take() -> Any:
        return [5, 6][there(dtype=WHOLE).item()], "ab"[there(dtype=WHOLE)], [*map("cd".__getitem__, (0,))]

    with PredictedDevice(A100) as device:
        assert take() == (5, "a", ["c"])
        assert "an index that is not computed is assumed to be 0" in stated(device)
        (line,) = {answer.rpartition("#")[0] for answer in device.recorder.assumptions.questions.answers()}
    with PredictedDevice(A100, assume={f"{line}#2": 1}):
        assert take() == (5, "b", ["c"])
    with PredictedDevice(A100):
        rows, at = there(4, 5, 6), there(dtype=WHOLE)
        assert (rows[at].shape, rows[1, at].shape, rows[at, :, 2].shape) == ((5, 6), (6,), (5,))
        rows[2, at] = 1
        with pytest.raises(DataNeeded):
            np.zeros((3, 4))[0, : at.item()]


def test_questions_of_one_line_are_answered_by_number_and_by_name() -> None:
    def ask() -> Any:
        low, high = there(dtype=WHOLE).item(), there(dtype=WHOLE).item()
        kept = [there(9)[there(9) > 0.5].numel() for _ in range(2)]
        return int(low), int(high), kept

    file, first = Path(__file__).name, ask.__code__.co_firstlineno + 1
    low, high = f"{file}:{first}#1", f"{file}:{first}#2"
    for answers in (
        {low: 3, high: 4, f"{file}:kept": 2},
        {f"{file}:low": 3, f"{file}:high": 4, f"{file}:kept": (2, 2)},
    ):
        with PredictedDevice(A100, assume=answers) as device:
            assert ask() == (3, 4, [2, 2]) and not device.recorder.assumptions.unused
            written = device.recorder.assumptions.questions.answers()
        assert written == [f"{place}={value if type(value) is int else '2,2'}" for place, value in answers.items()]

    def call() -> Any:
        return ask()

    outer = f"{file}:{call.__code__.co_firstlineno + 1}"
    with PredictedDevice(
        A100, assume={f"{outer}#1": 7, f"{outer}#2": 8, f"{outer}#3": False, f"{file}:none": 1}
    ) as device:
        assert call() == (7, 8, [0, 0])
        sentence = device.recorder.assumptions.unused_sentence
        assert f"{file}:none. " in sentence and f"{high} (" in sentence and "9 elements" in sentence


def test_a_wrong_answer_is_an_error_that_says_which_are_possible() -> None:
    def ask() -> Any:
        count = there(dtype=WHOLE).item()
        count = there(9)[there(9) > 0.5].numel() + there(dtype=WHOLE).item()
        return count

    file, first = Path(__file__).name, ask.__code__.co_firstlineno + 1
    for place, value, said in (
        (f"{first}", 0.5, "whole number"),
        (f"{first + 1}", 10, "9 elements"),
        ("count", 1, "Name"),
    ):
        with PredictedDevice(A100, assume={f"{file}:{place}": value}), pytest.raises(WrongAnswer) as raised:
            ask()
        assert f"--assume {file}:{place}" in str(raised.value) and said in str(raised.value)
        assert raised.value.exit_status == 2
    with pytest.raises(UsageError, match="not a place"):
        PredictedDevice(A100, assume={f"{file}:3#0": 1})


def test_printing_says_that_values_are_unknown_and_needs_no_answer(device: PredictedDevice) -> None:
    assert repr(there(2, 3)) == "tensor(values unknown, device='cuda:0', size=(2, 3), dtype=torch.float32)"
    assert str(there(2).cpu()) == "tensor(values unknown, size=(2,), dtype=torch.float32)"
    assert repr(torch.ones(1)) == "tensor([1.])"
    token = torch.rand(4, 3, device="cuda").argmax(1) @ torch.tensor([10, 1, 10, 1], device="cuda")
    assert "%d of %3d" % (token, token.item()) == "1 of   1"  # noqa: UP031
    assert device.recorder.assumptions.stated
    with pytest.raises(DataNeeded):
        torch.zeros(int(token))


HOST: dict[str, Callable[[], Tensor]] = {
    "a copy": lambda: there(4).cpu(),
    "computed from it": lambda: (there(4).cpu() * 2 + 1).softmax(0),
    "a view of it": lambda: there(4).cpu()[1:].view(3, 1),
    "copied into": lambda: torch.zeros(4).copy_(there(4)),
    "a part copied into": lambda: written(lambda host: host[1:3].copy_(there(2))),
    "added to": lambda: torch.zeros(4).add_(there(4).cpu()),
    "listed": lambda: written(lambda host: torch._foreach_add_([host], [there(4).cpu()])),
    "given out": lambda: torch.add(there(4).cpu(), 1, out=torch.zeros(4)),
    "deep": lambda: copy.deepcopy(there(4).cpu()),
    "made of a number": lambda: torch.tensor([there().item(), 1.0]),
    "filled with a number": lambda: torch.full((3,), there().item()),
    "times a number": lambda: torch.ones(3) * there().item(),
    "a number written to it": lambda: written(lambda host: host.__setitem__(0, there().item())),
    "set": lambda: written(lambda host: host.__setitem__(0, there())),
}


def written(write: Callable[[Tensor], object]) -> Tensor:
    host = torch.zeros(4)
    write(host)
    return host


@pytest.mark.parametrize("how", HOST)
def test_what_came_from_the_device_stays_unknown_on_the_host(how: str, device: PredictedDevice) -> None:
    host = HOST[how]()
    assert host.device.type == "cpu"
    assert str(host).startswith("tensor(values unknown")


def test_a_host_tensor_is_unknown_until_it_is_written_over(device: PredictedDevice) -> None:
    host = there(4).cpu()
    assert torch.zeros_like(host).tolist() == [0, 0, 0, 0]
    host[:2] = 7
    assert str(host).startswith("tensor(values unknown")
    host.copy_(torch.arange(4.0))
    assert host.tolist() == [0, 1, 2, 3]
    ones = torch.ones(3)
    assert str(ones * there().item()).startswith("tensor(values unknown")
    assert (ones * 2).sum().item() == 6
    assert there(9)[torch.tensor([True, False, True]).repeat(3)].shape == (6,)
    # A large one stays unknown where it is copied to.
    unknown, target = there(1 << 19).cpu(), torch.zeros(1 << 19)
    assert target.copy_(unknown) is target
    with pytest.raises(DataNeeded):
        range(int(target[0].long()))
    # Its memory is never what was there before.
    for count in (5, 1 << 18, 3 << 20):
        host = torch.full((count,), 7, dtype=torch.uint8)
        del host
        copied = there(count, dtype=torch.uint8).cpu()
        assert not np.ctypeslib.as_array((np.ctypeslib.ctypes.c_uint8 * count).from_address(copied.data_ptr())).any()


@pytest.mark.parametrize("layout", [torch.preserve_format, torch.contiguous_format, torch.channels_last])
def test_a_copy_to_the_host_has_the_strides_that_torch_gives_it(layout: torch.memory_format) -> None:
    shapes: list[Callable[[Tensor], Tensor]] = [
        lambda tensor: tensor,
        lambda tensor: tensor.transpose(0, 3),
        lambda tensor: tensor[:, :, ::2],
        lambda tensor: tensor.expand(2, 3, 4, 5),
        lambda tensor: tensor.to(memory_format=torch.channels_last),
    ]
    for shape in shapes:
        wanted = torch.empty_like(shape(torch.zeros(1, 3, 4, 5)), memory_format=layout).stride()
        with PredictedDevice(A100):
            card = shape(torch.zeros(1, 3, 4, 5, device="cuda"))
            assert card.to("cpu", memory_format=layout).stride() == wanted


def test_dlpack_says_where_a_tensor_lies_and_gives_no_memory_away(device: PredictedDevice) -> None:
    assert there(3).__dlpack_device__() == (2, 0)
    with pytest.raises(UsageError, match="DLPack needs the values of a tensor"):
        torch.from_dlpack(there(3))
    assert torch.from_dlpack(torch.to_dlpack(torch.ones(3))).tolist() == [1, 1, 1]


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_torchs_own_questions_have_answers_that_are_stated(device: PredictedDevice) -> None:
    weight = nn.Parameter(there(4))
    # torch.compile switches this check off for the whole process, and another test may have used it.
    ones = there(3).fill_(1)
    for kind in (torch.distributions.Normal, torch.distributions.Beta):
        samples = kind(ones, ones, validate_args=True)
        assert samples.log_prob(samples.sample()).shape == (3,)
    assert torch.distributions.Binomial(10, ones).sample().shape == (3,)
    weight.grad = there(4)
    nn.utils.clip_grad_norm_([weight], 1.0, error_if_nonfinite=True)
    scaler, optimizer = torch.amp.GradScaler("cuda", init_scale=1024.0), torch.optim.SGD([weight], lr=0.1)
    scaler.scale(weight.sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 1024.0
    said = " ".join(device.unseen())
    assert "torch.distributions are assumed to be valid" in said
    assert "assumed to be finite" in said
    assert "find no overflow" in said
    with torch.autograd.detect_anomaly():
        weight = nn.Parameter(there(4))
        weight.square().sum().backward()
        assert weight.grad is not None and weight.grad.shape == (4,)
    torch._check_tensor_all(there(4, dtype=WHOLE) == 3)
    with pytest.raises(RuntimeError):
        torch._check_tensor_all(torch.zeros(4, device="cuda") == 3)
    assert any("are assumed to pass" in sentence for sentence in device.unseen())


@pytest.mark.filterwarnings("ignore:.*torch.jit.script. is deprecated")
@pytest.mark.parametrize(
    "how",
    [
        {"fast_mode": True},
        *(
            pytest.param(how, marks=pytest.mark.slow)
            for how in ({}, {"check_forward_ad": True}, {"check_batched_grad": True})
        ),
    ],
    ids=str,
)
def test_checks_of_gradients_run_and_find_that_they_agree(how: dict[str, bool], device: PredictedDevice) -> None:
    x = there(3, 4, dtype=torch.double).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: (x.square().sin(), x.argmax(-1)), x, **how)
    assert torch.autograd.gradgradcheck(lambda x: x.square().sin(), x)
    assert any("gradcheck is assumed to pass" in sentence for sentence in device.unseen())


def test_a_refusal_that_the_program_swallows_is_said(device: PredictedDevice) -> None:
    try:
        count = int(there(dtype=WHOLE))
    except Exception:
        count = 3
    assert count == 3
    (note,) = (each for each in device.unseen() if "caught an error" in each)
    assert "int(there(dtype=WHOLE))" in note


def test_a_library_on_the_way_is_named_beside_the_users_line(device: PredictedDevice) -> None:
    library = pytest.importorskip("diffusers.utils.torch_utils")
    with pytest.raises(UsageError, match=r"test_unknown_values\.py, line \d+.*via "):
        library.randn_tensor((there(dtype=WHOLE),))


def test_masks_are_filled_and_chosen_by_as_on_a_card(device: PredictedDevice) -> None:
    x, mask = torch.ones(8, 8, device="cuda"), torch.zeros(8, 8, dtype=torch.bool, device="cuda")
    before = device.allocated_bytes
    out = x.masked_fill(mask, torch.tensor(-1.0))
    assert out.is_cuda and device.allocated_bytes - before == 512
    assert x.masked_fill_(mask, torch.tensor(-1.0)) is x
    filled = torch.zeros(3, dtype=torch.long, device="cuda").masked_fill(mask[0, :3] == 0, torch.tensor(7))
    assert filled.tolist() == [7, 7, 7]
    with pytest.raises(RuntimeError):
        x.masked_fill(mask, torch.ones(8))
    # `where` converts a mask of bytes first; CRF layers keep such masks.
    mask = torch.ones(512, 512, dtype=torch.uint8, device="cuda")
    scores = torch.zeros(512, 512, device="cuda", requires_grad=True)
    before = device.allocated_bytes
    chosen = torch.where(mask, scores, scores)
    assert torch.cuda.max_memory_allocated() == before + 512 * 512 * (1 + 4)
    chosen.sum().backward()
    assert scores.grad is not None and scores.grad.shape == mask.shape


def tokens() -> list[Any]:
    """Generated tokens are read as a list and made a tensor again: one of floats would have another size."""
    return (nn.Linear(8, 16).cuda()(torch.randn(1, 8, device="cuda")) * 100).long()[0].cpu().tolist()


MADE: dict[str, tuple[Callable[[], Tensor], torch.dtype, str]] = {
    "tokens": (lambda: torch.tensor(tokens()), WHOLE, "cpu"),
    "tokens as a tensor": (lambda: torch.as_tensor(tokens()), WHOLE, "cpu"),
    "tokens on the card": (lambda: torch.tensor(tokens(), device="cuda"), WHOLE, "cuda"),
    "rows of tokens": (lambda: torch.tensor([tokens(), (1, *tokens()[1:])]), WHOLE, "cpu"),
    "filled with a token": (lambda: torch.full((2,), tokens()[0]), WHOLE, "cpu"),
    "tokens and a fraction": (lambda: torch.tensor([*tokens(), 0.5]), torch.float32, "cpu"),
    "tokens in 32 bits": (lambda: torch.tensor(tokens(), dtype=torch.int32), torch.int32, "cpu"),
    "floats": (lambda: torch.tensor([there().sum(), 2.0]), torch.float32, "cpu"),
    "wholes": (lambda: torch.tensor((there(4).argmax(), 3)), torch.long, "cpu"),
    "on the card": (lambda: torch.tensor([[there()]], device="cuda"), torch.float32, "cuda"),
    "halves": (lambda: torch.as_tensor([there()], dtype=torch.float16), torch.float16, "cpu"),
    "of another": (lambda: there(2).new_tensor([there()]), torch.float32, "cuda"),
}


@pytest.mark.parametrize("way", MADE)
def test_a_tensor_is_made_of_numbers_that_nobody_knows(way: str, device: PredictedDevice) -> None:
    make, dtype, kind = MADE[way]
    made = make()
    assert (made.dtype, made.device.type) == (dtype, kind) and "values unknown" in repr(made)


def test_a_tensor_is_made_of_numbers_that_are_known_or_stated() -> None:
    with PredictedDevice(A100):
        counts = torch.ones(3, device="cuda").cumsum(0)
        assert torch.tensor([counts[2], 5.0]).tolist() == [3.0, 5.0]
    line = test_a_tensor_is_made_of_numbers_that_are_known_or_stated.__code__.co_firstlineno + 6
    with PredictedDevice(A100, assume={f"test_unknown_values.py:{line}": (7, 9)}):
        assert torch.tensor([there(), there()]).tolist() == [7, 9]


def test_small_whole_numbers_are_drawn_from_a_seed_that_is_said() -> None:
    drawn = []
    for _ in range(2):
        with PredictedDevice(A100) as device:
            at, length = torch.randint(900, (), device="cuda"), torch.randint(5, 9, (1,), device="cuda")
            drawn.append((int(at), length.item()))
            assert torch.zeros(1000)[at : at + length].shape == (length.item(),)
            assert any("from seed 0" in said for said in stated(device))
    assert drawn[0] == drawn[1] and 0 <= drawn[0][0] < 900 and 5 <= drawn[0][1] < 9
    line = test_small_whole_numbers_are_drawn_from_a_seed_that_is_said.__code__.co_firstlineno + 11
    with PredictedDevice(A100, assume={f"test_unknown_values.py:{line}": 3}):
        assert torch.randint(900, (), device="cuda").item() == 3


H = torch.arange(16.0).reshape(4, 4)
ON_HOST: dict[str, Callable[[torch.Tensor], object]] = {
    "matmul": lambda card: card @ H,
    "bmm": lambda card: torch.bmm(card[None], H[None]),
    "einsum": lambda card: torch.einsum("ij,jk", card, H),
    "linear": lambda card: functional.linear(card, H, torch.ones(4)),
    "convolution": lambda card: functional.conv1d(card[None], torch.ones(4, 4, 3)),
    "bias": lambda card: functional.conv1d(card[None], card[:, :, None], torch.ones(4)),
    "layer norm": lambda card: functional.layer_norm(card, (4,), torch.ones(4)),
    "attention": lambda card: functional.scaled_dot_product_attention(card[None, None], H[None, None], H[None, None]),
    "mask": lambda card: functional.scaled_dot_product_attention(*[card[None, None]] * 3, attn_mask=H),
    "embedding": lambda card: functional.embedding(torch.tensor([1]), card),
    "embedding bag": lambda card: functional.embedding_bag(torch.tensor([[1]]), card),
    "gather": lambda card: card.gather(0, torch.zeros(4, 4, dtype=torch.long)),
    "scatter": lambda card: card.scatter(0, torch.zeros(4, 4, dtype=torch.long), card),
    "index_select": lambda card: card.index_select(0, torch.tensor([1])),
    "distances": lambda card: torch.cdist(card, H),
    "isin": lambda card: torch.isin(card, H),
    "take": lambda card: card.take(torch.tensor([1])),
    "sum": lambda card: torch.ones(4) + card,
    "index of the card": lambda card: torch.ones(4)[card.argmax(0)],
    "scatter to the host": lambda card: torch.zeros(4).scatter_(0, card.argmax(0), 1),
    "joined": lambda card: torch.cat([torch.ones(4), card[0]]),
    "linear to the card": lambda card: functional.linear(torch.ones(2, 4), card, card[0]),
    "matmul with the card": lambda card: torch.ones(2, 4) @ card,
}


@pytest.mark.parametrize("name", ON_HOST)
def test_an_operator_on_two_devices_is_refused_as_on_a_card(name: str, device: PredictedDevice) -> None:
    card = torch.rand(4, 4, device="cuda")
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        ON_HOST[name](card)
    # A number, an index and a copy may come from the host.
    assert (card * torch.tensor(2.0)).is_cuda and card[torch.tensor([1])].is_cuda and card.copy_(H).is_cuda


@pytest.mark.parametrize(("rows", "columns"), [(9, 4), (4, 9)])
def test_least_squares_have_the_shapes_of_the_drivers_of_a_card(rows: int, columns: int) -> None:
    here = torch.linalg.lstsq(torch.rand(3, rows, columns), torch.rand(3, rows, 2), driver="gels")
    with PredictedDevice(A100):
        a = torch.rand(3, rows, columns, device="cuda", requires_grad=True)
        there = torch.linalg.lstsq(a, torch.rand(3, rows, 2, device="cuda"))
        assert [one.shape for one in there] == [one.shape for one in here]
        there.solution.sum().backward()
        assert a.grad is not None and a.grad.shape == a.shape


def test_whole_numbers_are_integers_and_differ_from_what_they_are_compared_with(device: PredictedDevice) -> None:
    count = (torch.rand(8, device="cuda") @ torch.rand(8, 8, device="cuda") > 0).sum().item()
    assert isinstance(count, int) and f"{count:>8}" == " unknown"
    rows = np.array([[count, 0], [count // 2, 1]])
    assert np.issubdtype(rows.dtype, np.integer) and rows.sum() == 13
    assert len([0] * count) == 8 and len(range(count - 2)) == 6 and divmod(count, 3) == (2, 2)
    assert isinstance(count / 2, float) and isinstance(count * 0.5, float)
    assert copy.deepcopy([count])[0] is count and pickle.loads(pickle.dumps(count)).default == 8
    # A text goes on until its greatest length, whichever number ends it.
    token = there(dtype=WHOLE).item()
    assert not any(token == end for end in (0, 1, 2)) and all(token != end for end in (0, 1, 2))
    assert token == token
    assert any("assumed to differ" in said for said in stated(device))


def test_masks_that_are_not_computed_are_true_everywhere(device: PredictedDevice) -> None:
    mask = (torch.rand(8, 64, device="cuda") @ torch.rand(64, 64, device="cuda")) > 0
    assert (mask[:, 1:] ^ mask[:, :-1]).nonzero().shape == (0, 2)
    assert mask[mask].shape == (8 * 64,)
    other = (torch.rand(8, 64, device="cuda") @ torch.rand(64, 64, device="cuda")) > 0
    assert (mask ^ other).nonzero().shape == (8 * 64, 2)
    masks = (torch.rand(48, 200, 200, device="cuda") @ torch.rand(200, 200, device="cuda")) > 0
    places = masks.flatten(1).nonzero()
    assert places.shape == (48 * 200 * 200, 2)
    assert all(places[places[:, 0] == row, 1].shape == (200 * 200,) for row in range(3))
    boxes = torch.rand(8, 4, device="cuda") @ torch.rand(4, 4, device="cuda")
    near = torch.isclose(boxes, torch.zeros(1, 4, device="cuda"), atol=20.0)
    for mask in (near, ~near.any(dim=1), boxes.bool(), near ^ near.flip(0), torch.isin(boxes, boxes[0])):
        assert bool(mask.all()) in (True, False)
    assert device.recorder.assumptions.stated
