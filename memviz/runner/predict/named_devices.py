"""Which device a program names: ours, the host, or one that is not there."""

from __future__ import annotations

from typing import Any

import torch

from memviz.runner.predict.compat import without_functions
from memviz.runner.predict.group.ranks import GroupRank
from memviz.runner.predict.prediction_errors import card_of_another_rank, no_such_device

META = torch.device("meta")
"""Device of the meta tensors that represent those on the card. A program's own "meta" tensors are on no device."""
CUDA_0 = torch.device("cuda", 0)
"""Device of these tensors for the program."""


class NamedDevices:
    """`rank` is the process of a group that runs here, and has a card of its machine to itself."""

    def __init__(self, card: str, rank: GroupRank | None = None) -> None:
        self._card = card
        self._rank = rank
        self.count = 1 if rank is None else rank.cards
        self.own = torch.device("cuda", 0 if rank is None else rank.card)

    def means_us(self, value: Any, *, numbers: bool = False) -> bool:
        """'cuda', 'cuda:0', and where a device is expected also its number; another card's is an error."""
        if type(value) is str:
            if not value.startswith("cuda"):
                return False
            return value == "cuda" or value.startswith("cuda:") and self._is_there(_number(value[5:]))
        if type(value) is torch.device:
            return value.type == "cuda" and self._is_there(value.index or 0)
        return numbers and type(value) is int and self._is_there(value)

    @staticmethod
    def means_nowhere(value: Any) -> bool:
        """`torch.device("meta")`, on which programs build what gets its memory later."""
        return type(value) is torch.device and value == META or type(value) is str and value == "meta"

    def check(self, value: Any) -> None:
        """Check the device argument of a function; None is the current device."""
        self.means_us(value, numbers=True)

    def exists(self, index: int) -> bool:
        """On the machine, where all cards are alike."""
        if index >= self.count:
            raise no_such_device(index, self._card)
        return True

    def _is_there(self, index: int) -> bool:
        if self.exists(index) and self._rank is not None and index != self.own.index and index > 0:
            raise card_of_another_rank(index, self._rank.number, self.own.index)
        return True


def on_card(tensor: torch.Tensor) -> bool:
    """For our own eyes: a program that asks is told where it would be."""
    with without_functions():
        return tensor.is_meta


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0
