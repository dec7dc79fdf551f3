"""What a collective hands back: it holds its tensors until somebody waits for it, as NCCL does."""

from __future__ import annotations

from typing import Any

import torch
from torch._C import _distributed_c10d as c10d

from memviz.runner.predict.stream_order import Lane, Moment, StreamOrder

_BASE: Any = c10d.Work


class Works:
    """Of the collectives that go on. Those of one group end in their order.

    NCCL begins one when the stream that asks has come to it and the group's last one is over, whichever stream asked
    for that. So whoever waits for a collective has waited for what came before earlier ones, too.
    """

    def __init__(self, order: StreamOrder) -> None:
        self._order = order
        self._lanes: dict[str, Lane] = {}
        """Of NCCL, one a group."""
        self._going_on: dict[str, list[PretendedWork]] = {}
        self._made: list[PretendedWork] = []
        """All of them: C++ may wait for one at any time, and for ever if its Python object were gone."""

    def begin(self, group: str, held: list[torch.Tensor], result: list[torch.Tensor], *, is_async: bool) -> Any:
        """As torch's C++ takes it."""
        moment = self._run(group) if any(tensor.is_meta for tensor in held) else {}
        if not is_async:
            self._order.wait(self._order.current, moment)
            return c10d.FakeWork().boxed()
        work = PretendedWork(self, group, held, result, moment)
        self._going_on.setdefault(group, []).append(work)
        self._made.append(work)
        return work.boxed()

    def _run(self, group: str) -> Moment:
        """When it is over."""
        lane = self._lanes.setdefault(group, Lane(-1 - len(self._lanes), 0))
        self._order.wait(lane, self._order.moment(self._order.current))
        return dict(lane.knows)

    def wait(self, work: PretendedWork) -> None:
        self._order.wait(self._order.current, work.moment)
        self.end(work)

    def end(self, work: PretendedWork) -> None:
        going_on = self._going_on.get(work.group, [])
        if work in going_on:
            last = going_on.index(work)
            for over in going_on[: last + 1]:
                over.held, over.tensors = [], []
            del going_on[: last + 1]

    def end_all(self) -> None:
        for going_on in list(self._going_on.values()):
            if going_on:
                self.end(going_on[-1])


class PretendedWork(_BASE):  # type: ignore[misc]
    def __init__(
        self, works: Works, group: str, held: list[torch.Tensor], tensors: list[torch.Tensor], moment: Moment
    ) -> None:
        super().__init__()
        self._works = works
        self.group = group
        self.held = held
        self.tensors = tensors
        self.moment = moment

    def wait(self, timeout: Any = None) -> bool:
        self._works.wait(self)
        return True

    def synchronize(self) -> None:
        self._works.wait(self)

    def is_completed(self) -> bool:
        return True

    def result(self) -> list[torch.Tensor]:
        return self.tensors

    def get_future(self) -> Any:
        """Who has it waits for it instead, and it holds what was received."""
        future: Any = torch.futures.Future()
        future.set_result(self.tensors)
        self._works.end(self)
        return future
