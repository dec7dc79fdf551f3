"""Devices that a program names: the pretended card, the host, or one that does not exist."""

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
    """Cards of the machine; in a group, each rank has one of them to itself."""

    def __init__(self, card: str, rank: GroupRank | None = None) -> None:
        self._card = card
        self._rank = rank
        self.count = 1 if rank is None else rank.cards
        self.own = torch.device("cuda", 0 if rank is None else rank.card)

    def is_own(self, value: Any, *, numbers: bool = False) -> bool:
        """Return whether a value names the card: 'cuda', 'cuda:0' or its number; another card is an error."""
        if type(value) is str:
            if not value.startswith("cuda"):
                return False
            number = value[5:]
            return value == "cuda" or value[4] == ":" and self._is_there(int(number) if number.isdigit() else 0)
        if type(value) is torch.device:
            return value.type == "cuda" and self._is_there(value.index or 0)
        return numbers and type(value) is int and self._is_there(value)

    @staticmethod
    def is_meta_device(value: Any) -> bool:
        """Return whether a value is `meta`, on which programs build what gets its memory later."""
        return type(value) is torch.device and value == META or type(value) is str and value == "meta"

    def check(self, value: Any) -> None:
        """Check the device argument of a function; None is the current device."""
        self.is_own(value, numbers=True)

    def exists(self, index: int) -> bool:
        """Raise unless the machine has so many cards."""
        if index >= self.count:
            raise no_such_device(index, self._card)
        return True

    def _is_there(self, index: int) -> bool:
        if self.exists(index) and self._rank is not None and index != self.own.index and index > 0:
            raise card_of_another_rank(index, self._rank.number, self.own.index)
        return True


def on_card(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is on the pretended card, without the answer that the program gets."""
    with without_functions():
        return tensor.is_meta
