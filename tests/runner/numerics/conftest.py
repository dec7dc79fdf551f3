"""Small tensors: a second thread only waits for the first."""

from __future__ import annotations

from tests.one_thread import one_thread  # noqa: F401 - a fixture of every test here
