"""What a predicted device says where it cannot go on: the line, what it asks for, and the remedy."""

from __future__ import annotations

from typing import Any

from memviz.errors import UsageError
from memviz.runner.predict.program_frames import line_of_caller, place_of_caller

REMEDY = "Or take the value from the host, write it as a constant, or leave this line out of what is predicted."
_REMEDIES = {"repeat_interleave": "Or give it output_size, and its shape is known."}
_NAMES = {
    "_local_scalar_dense": "a decision, an index or a number taken from a tensor",
    "equal": "torch.equal",
    "index": "a mask as an index",
    "nonzero": "nonzero (or torch.where with a condition alone)",
    "_unique2": "unique",
    "unique_dim": "unique",
    "_pack_padded_sequence": "pack_padded_sequence",
    "linalg_lstsq": "torch.linalg.lstsq",
    "_linalg_check_errors": "a check of a matrix",
    "_ctc_loss": "ctc_loss",
}

_refused: list[str] = []
"""What was refused since the device was entered; there is one at a time."""


def name_for_users(func: Any) -> str:
    """What a user writes for an operator that looks at values; torch knows it by another name."""
    name: str = func.overloadpacket.__name__
    return _NAMES.get(name, name)


def remedy_for(func: Any) -> str:
    return _REMEDIES.get(func.overloadpacket.__name__, REMEDY)


class DataNeeded(UsageError):
    """The program branches on data, or a shape depends on it."""

    def __init__(self, head: str, rest: str) -> None:
        _refused.append(head)
        super().__init__(f"{head} {rest}")
        self.where = place_of_caller()
        """The program's line, as 'train.py:12'."""
        self.what = f"{head.removeprefix(_head())} {rest}"
        self._head = head

    def was_not_caught(self) -> None:
        """By the program: it ended."""
        if self._head in _refused:
            _refused.remove(self._head)


def forget_refusals() -> None:
    _refused.clear()


def caught_refusal() -> str:
    """In a sentence, what the program was refused and went on without; empty where nothing was."""
    if not _refused:
        return ""
    return (
        "The program caught a refusal and went on, so it may have gone another way than with values. "
        f"{_refused[0]} asked for some."
    )


class NoSuchDevice(UsageError, RuntimeError):
    """As torch's own error for a card that is not there, so that a program that expects it goes on as it would."""


def data_needed(what: str, remedy: str = REMEDY) -> DataNeeded:
    """`what` was asked for, as the user would write it: '.tolist()'."""
    asks = "asks for the values of a tensor, and a predicted device computes none."
    return DataNeeded(f"{_head()}{what}", f"{asks} {_say_it(remedy)}")


def decided(line: str) -> DataNeeded:
    """By a number that was taken from a tensor before, in `line`."""
    origin = f" ({line})" if line else ""
    return DataNeeded(
        f"{_head()}a decision",
        f"asks for a number that was taken from a tensor{origin}, and a predicted device computes none: it may be "
        f"printed and added up, but this cannot be decided by it. {_say_it(REMEDY)}",
    )


def decided_too_often(line: str) -> DataNeeded:
    origin = f" ({line})" if line else ""
    return DataNeeded(
        f"{_head()}a decision",
        f"asks again and again for a number that was taken from a tensor{origin} and never changes on a predicted "
        f"device, so the program would not end. {_say_it(REMEDY)}",
    )


def _say_it(remedy: str) -> str:
    place = place_of_caller()
    return f"State it with --assume {place}=VALUE. {remedy}" if place else remedy


def in_words_of_a_card(error: RuntimeError, func: Any, args: Any) -> None:
    """Raises what a card would say of sizes and devices; without data torch has other words, and programs look."""
    if "is not on the expected device meta" in str(error):
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! "
            f"(in {name_for_users(func)})"
        ) from None
    if func.overloadpacket.__name__ not in ("mm", "addmm"):
        return
    one, other = args[-2:]
    if one.dim() == other.dim() == 2 and one.size(1) != other.size(0):
        shapes = f"{one.size(0)}x{one.size(1)} and {other.size(0)}x{other.size(1)}"
        raise RuntimeError(f"mat1 and mat2 shapes cannot be multiplied ({shapes})") from None


def not_predicted(operator: str, why: str) -> UsageError:
    return UsageError(
        f"{_head()}{operator} cannot be predicted: {why}. Leave it out, or write it with other operators."
    )


def no_such_device(index: int, card: str) -> NoSuchDevice:
    return NoSuchDevice(
        f"{_head()}CUDA error: invalid device ordinal. Device {index} is asked for, and what is predicted is a machine "
        f"with one {card}, which is cuda:0. Name that one, or no number at all."
    )


def _head() -> str:
    line = line_of_caller()
    return f"{line}: " if line else ""
