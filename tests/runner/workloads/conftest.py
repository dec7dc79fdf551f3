"""No workload asks the network for anything, and the small twins run best on one thread."""

from __future__ import annotations

import socket

import pytest

from tests.one_thread import one_thread  # noqa: F401 - a fixture of every test here


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise RuntimeError(f"a workload asked the network: {arguments}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
