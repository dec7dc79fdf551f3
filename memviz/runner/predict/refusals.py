"""What a predicted device says where it cannot go on."""

from __future__ import annotations

from memviz.errors import UsageError
from memviz.runner.predict.caller import line_of_caller

REMEDY = "Take the value from the host, write it as a constant, or leave this line out of what is predicted."


_refused: list[str] = []
"""What was refused since the device was entered; there is one at a time."""


class DataNeeded(UsageError):
    """The program branches on data, or a shape depends on it."""

    def __init__(self, head: str, rest: str) -> None:
        _refused.append(head)
        super().__init__(f"{head} {rest}")


def begin() -> None:
    _refused.clear()


def caught() -> str:
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
    return DataNeeded(
        f"{_head()}{what}", f"asks for the values of a tensor, and a predicted device computes none. {remedy}"
    )


def decided(asked: str) -> DataNeeded:
    """By a number that was taken from a tensor before."""
    origin = f" ({asked})" if asked else ""
    return DataNeeded(
        f"{_head()}a decision",
        f"asks for a number that was taken from a tensor{origin}, and a predicted device computes none: it may be "
        f"printed and added up, but nothing can be decided by it. {REMEDY}",
    )


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
