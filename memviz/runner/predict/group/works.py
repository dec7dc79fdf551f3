"""What a collective hands back: it holds its tensors until somebody waits for it, as NCCL does."""

from __future__ import annotations

from typing import Any

import torch
from torch._C import _distributed_c10d as c10d

_BASE: Any = c10d.Work


class Works:
    """Of the collectives that go on. Those of one group end in their order."""

    def __init__(self) -> None:
        self._going_on: dict[str, list[PretendedWork]] = {}
        self._made: list[PretendedWork] = []
        """All of them: C++ may wait for one at any time, and for ever if its Python object were gone."""

    def begin(self, group: str, held: Any, result: list[torch.Tensor], *, is_async: bool) -> Any:
        """As torch's C++ takes it."""
        if not is_async:
            return c10d.FakeWork().boxed()
        work = PretendedWork(self, group, held, result)
        self._going_on.setdefault(group, []).append(work)
        self._made.append(work)
        return work.boxed()

    def end(self, work: PretendedWork) -> None:
        going_on = self._going_on.get(work.group, [])
        if work in going_on:
            last = going_on.index(work)
            for over in going_on[: last + 1]:
                over.held, over.tensors = None, []
            del going_on[: last + 1]

    def end_all(self) -> None:
        for going_on in list(self._going_on.values()):
            if going_on:
                self.end(going_on[-1])


class PretendedWork(_BASE):  # type: ignore[misc]
    def __init__(self, works: Works, group: str, held: Any, tensors: list[torch.Tensor]) -> None:
        super().__init__()
        self._works = works
        self.group = group
        self.held = held
        self.tensors = tensors

    def wait(self, timeout: Any = None) -> bool:
        self._works.end(self)
        return True

    def synchronize(self) -> None:
        self._works.end(self)

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
