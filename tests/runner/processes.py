"""Helpers to wait for orders and processes, and to check whether a process runs."""

import time
from collections.abc import Callable
from pathlib import Path

from memviz.runner.jobs.service import OrderStatus, Scheduler
from memviz.runner.jobs.worker_process import Worker

PATIENCE_SECONDS = 600


def wait_until(it_is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not it_is_so():
        assert time.monotonic() < end
        time.sleep(0.02)


def over(scheduler: Scheduler, status: OrderStatus) -> OrderStatus:
    end = time.monotonic() + PATIENCE_SECONDS
    while not status.is_over:
        assert time.monotonic() < end
        found = scheduler.status(status.id, newer_than=status.version, wait=1)
        assert found is not None
        status = found
    return status


def running(scheduler: Scheduler, status: OrderStatus, number: int = 0) -> Worker:
    """Return the worker once it works: if it died earlier, another process would take over its run."""
    order = scheduler._jobs[status.id]

    def works() -> bool:
        scheduler.status(status.id)
        variant = order.status.variants[number]
        return variant.state == "running" and variant.phase not in ("", "starting") and order.worker is not None

    wait_until(works)
    assert isinstance(order.worker, Worker)
    return order.worker


def is_there(pid: int) -> bool:
    """Return whether a process runs; a zombie counts as gone."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"
