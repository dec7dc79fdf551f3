"""Nothing here is large enough to gain by threads."""

from __future__ import annotations

from tests.one_thread import one_thread  # noqa: F401 - a fixture of every test here
