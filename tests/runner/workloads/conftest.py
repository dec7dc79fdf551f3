"""No workload asks the network for anything, and the small twins run best on one thread."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise RuntimeError(f"a workload asked the network: {arguments}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """They are too small to share out: with several threads most of the time is waiting for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
