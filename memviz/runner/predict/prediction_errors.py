"""Errors of a predicted device that cannot continue: the line, what it asks for, and the remedy."""

from __future__ import annotations

from typing import Any

from memviz.errors import UsageError
from memviz.runner.predict.position import AskedLine, line_of_caller, place_of, place_of_caller, place_to_assume

REMEDY = "Or take the value from the host, write it as a constant, or leave this line out of what is predicted."
_NO_VALUE_HELPS = "No value helps: leave this line out of what is predicted."
_HOW_MANY = "VALUE is how many there are."
_REMEDIES = {
    "bincount": f"{_HOW_MANY} Or give it minlength: values are taken to lie below.",
    "repeat_interleave": f"{_HOW_MANY} Or give it output_size, and its shape is known.",
    **dict.fromkeys(("_unique2", "unique_consecutive", "unique_dim", "unique_dim_consecutive"), _HOW_MANY),
}
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
    "_sparse_addmm": "torch.sparse.mm",
    "_to_sparse": "to_sparse",
    "_to_sparse_csr": "to_sparse_csr",
    "sparse_compressed_tensor_comp_plain_value_size": "torch.sparse_csr_tensor",
    "_sparse_sum": "torch.sparse.sum",
    "_to_copy": ".to()",
}
OF_SPARSE = (
    "no rule says what it takes of a sparse tensor; of those in COO layout only products with dense tensors are known, "
    "and what optimizers ask of gradients"
)

_refused: list[str] = []
"""Refusals since the device was entered; only one device exists at a time."""


def name_for_users(func: Any) -> str:
    """Return the name that users write for an operator that reads values, which differs from torch's."""
    return users_name(func.overloadpacket.__name__)


def users_name(operator: str) -> str:
    return _NAMES.get(operator, operator)


def remedy_for(func: Any) -> str:
    return _REMEDIES.get(func.overloadpacket.__name__, REMEDY)


class Stopped(UsageError):
    """A program cannot go on where it is."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{_head()}{what}")
        self.what = what
        self.where = place_of_caller()
        """The program's line, as 'train.py:12'."""

    def was_not_caught(self) -> None:
        """Called when the error ended the program."""


class NotPredicted(Stopped):
    """An operator whose memory nobody here knows."""


class DataNeeded(Stopped):
    """The program branches on data, or a shape depends on it."""

    def __init__(self, asking: str, rest: str, place: str = "") -> None:
        self._refusal = f"{_head()}{asking}"
        _refused.append(self._refusal)
        self.assume = f"--assume {place}=VALUE" if place else ""
        """The option that states the value; empty where none would be taken."""
        super().__init__(f"{asking} {rest}")

    def was_not_caught(self) -> None:
        """Drop the refusal, because the program ended with it."""
        if self._refusal in _refused:
            _refused.remove(self._refusal)


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
    """Error like torch's own for a missing card, so that a program that expects it continues."""


class NoSuchKernel(UsageError, RuntimeError):
    """Error like torch's own where no enabled kernel fits: programs try one and take another."""


def no_such_kernel(why: str) -> NoSuchKernel:
    return NoSuchKernel(f"No available kernel. Aborting execution. {why}")


def data_needed(what: str, remedy: str = REMEDY, *, takes_value: bool = True) -> DataNeeded:
    """`what` was asked for, as the user would write it: '.tolist()'. `takes_value`: whether --assume would answer."""
    asks = "asks for the values of a tensor, and a predicted device computes none."
    place = place_to_assume() if takes_value else ""
    return DataNeeded(what, f"{asks} {_say_it(place, remedy)}", place)


def decided(asked: AskedLine, what: str = "a decision", *, without_end: bool = False) -> DataNeeded:
    """Return the error for a decision by a number taken from a tensor; `without_end` if it repeats forever."""
    number = f"a number that was taken from a tensor{f' ({asked.words})' if asked.words else ''}"
    why = (
        "that never changes on a predicted device, so the program would not end."
        if without_end
        else "and a predicted device computes none: it may be printed and added up, but this cannot be decided by it."
    )
    return DataNeeded(what, f"asks for {number}, {why} {_say_it(asked.place, REMEDY)}", asked.place)


def size_needed(error: TypeError) -> DataNeeded:
    """For an error of torch's own about a number that was to be a size."""
    needed = DataNeeded("A size", "is made of a number that was taken from a tensor, and nobody computes it.")
    at = place_of(error.__traceback__)
    needed.where = at
    needed.what = f"{needed.what} State the number with --assume at the line that takes it."
    needed.args = (f"{at}: {needed.what}",)
    return needed


def interrupted(error: KeyboardInterrupt) -> Stopped:
    """Return the error for Ctrl-C, with the line that the program was at."""
    stopped = Stopped("Ctrl-C ended it.")
    stopped.where = place_of(error.__traceback__)
    stopped.args = (f"{stopped.where}: {stopped.what}" if stopped.where else stopped.what,)
    return stopped


def _say_it(place: str, remedy: str) -> str:
    return f"State it with --assume {place}=VALUE. {remedy}" if place else _NO_VALUE_HELPS


def in_words_of_a_card(error: RuntimeError, func: Any, args: Any) -> None:
    """Raises what a card would say of sizes and devices; without data torch has other words, and programs look."""
    if "is not on the expected device" in str(error):
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
    return NotPredicted(f"{operator} cannot be predicted: {why}. Leave it out, or write it with other operators.")


def shapes_not_registered(func: Any) -> UsageError:
    """Return the error for a custom operator without registered shapes."""
    name = func.name()
    return NotPredicted(
        f"{name} cannot be predicted: it is not one of torch's own operators, and nothing says what shapes it gives. "
        f'Say it with @torch.library.register_fake("{name}") over a function of the same arguments, which returns '
        "tensors of those shapes, as torch.empty_like(x)."
    )


def no_such_device(index: int, card: str) -> NoSuchDevice:
    return NoSuchDevice(
        f"{_head()}CUDA error: invalid device ordinal. Device {index} is asked for, and what is predicted is a machine "
        f"with one {card}, which is cuda:0. Name that one, or no number at all."
    )


def card_of_another_rank(index: int, rank: int, own: int) -> NoSuchDevice:
    return NoSuchDevice(
        f"{_head()}CUDA error: device {index} is asked for, and what is predicted is rank {rank}, whose card is "
        f"cuda:{own}. Name that one (LOCAL_RANK is {own}), or no number at all."
    )


def _head() -> str:
    line = line_of_caller()
    return f"{line}: " if line else ""
