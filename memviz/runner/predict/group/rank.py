"""Which process of how many: what `torchrun` would have told it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from memviz.errors import UsageError

CARDS_OF_A_MACHINE = 8
_PORT = "29500"


@dataclass(frozen=True)
class GroupRank:
    """Machines are full: of world size 16, rank 9 is the second process of the second machine."""

    number: int
    world_size: int

    def __post_init__(self) -> None:
        if self.world_size < 1:
            raise UsageError(f"A world size is 1 or more, not {self.world_size}.")
        if not 0 <= self.number < self.world_size:
            last = self.world_size - 1
            raise UsageError(f"Of {self.world_size} processes the ranks are 0 to {last}, not {self.number}.")

    @property
    def cards(self) -> int:
        """Of its machine, one a process."""
        return min(self.world_size, CARDS_OF_A_MACHINE)

    @property
    def card(self) -> int:
        """The number of its own: `LOCAL_RANK`."""
        return self.number % self.cards

    @property
    def environment(self) -> dict[str, str]:
        machines = -(-self.world_size // self.cards)
        return {
            "RANK": str(self.number),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_RANK": str(self.card),
            "LOCAL_WORLD_SIZE": str(self.cards),
            "GROUP_RANK": str(self.number // self.cards),
            "GROUP_WORLD_SIZE": str(machines),
            "ROLE_RANK": str(self.number),
            "ROLE_WORLD_SIZE": str(self.world_size),
            "ROLE_NAME": "default",
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": _PORT,
            "TORCHELASTIC_RUN_ID": "none",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "TORCHELASTIC_USE_AGENT_STORE": "False",
        }


def rank_of_environment(environment: Mapping[str, str]) -> GroupRank | None:
    """Under `torchrun`, which has said it already."""
    world_size, rank = environment.get("WORLD_SIZE", ""), environment.get("RANK", "0")
    if not world_size.isdigit() or not rank.isdigit() or int(world_size) < 2:
        return None
    return GroupRank(int(rank), int(world_size))
