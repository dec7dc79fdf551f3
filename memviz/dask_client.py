"""A client of a Dask scheduler, by its address."""

from __future__ import annotations

import asyncio
import builtins
import types
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from memviz.errors import UsageError, first_line

_ANSWERS_WITHIN_SECONDS = 20
_WORKERS_WITHIN_SECONDS = 60


@contextmanager
def dask_client(address: str) -> Iterator[Any]:
    """Yield a client of the scheduler, once it has a worker."""
    try:
        from distributed import Client
    except ImportError:
        raise UsageError("--scheduler needs Dask, which is not installed here: pip install distributed.") from None
    try:
        # A client would wait forever for a scheduler that is silent. A thread of its own has no event loop yet.
        with ThreadPoolExecutor(1) as own_thread:
            own_thread.submit(asyncio.run, _check_reachable(address)).result()
        client = Client(address, timeout=_ANSWERS_WITHIN_SECONDS, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        is_silent = isinstance(error, TimeoutError) and not str(error)
        reason = f"silent for {_ANSWERS_WITHIN_SECONDS} s" if is_silent else first_line(error)
        remedy = "Its address looks like tcp://host:8786."
        raise UsageError(f"No scheduler answers at '{address}' ({reason}). {remedy}") from None
    try:
        try:
            client.wait_for_workers(1, timeout=_WORKERS_WITHIN_SECONDS)
        except TimeoutError:
            raise UsageError(f"The scheduler at {address} has no workers. Start some: dask worker {address}") from None
        yield client
    finally:
        client.close()


async def _check_reachable(address: str) -> None:
    from distributed.comm import connect
    from distributed.security import Security

    how = Security().get_connection_args("client")
    greeting = connect(address, timeout=_ANSWERS_WITHIN_SECONDS, **how)
    comm = await asyncio.wait_for(greeting, _ANSWERS_WITHIN_SECONDS)
    comm.abort()


@contextmanager
def one_at_a_time(name: str) -> Iterator[None]:
    """Hold a lock of this name across the whole cluster, within a task of a worker."""
    from distributed import Lock

    with Lock(name):
        yield


def by_value(function: Any) -> Any:
    """Return the function as code alone, so that workers need not import this file."""
    code = types.FunctionType(function.__code__, {"__builtins__": builtins}, function.__name__)
    code.__module__ = "__main__"
    return code
