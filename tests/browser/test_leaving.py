"""A visitor who leaves during a run frees the device."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.browser.conftest import PATIENCE_SECONDS, expect, opened, page_of, program
from tests.server import Server

pytest.importorskip("gradio_client")
PAGE = """
from dataclasses import replace
from memviz.runner.jobs.worker_process import Worker
from memviz.ui.run import answer
from memviz.ui.app import build_app, launch_options
from memviz.ui.run.answer import RunAnswers

Worker.module = "tests.runner.fake_worker"
answer.AT_HOME = replace(answer.AT_HOME, patience_seconds=10)
real = RunAnswers.listing

def listing(self):
    found = real(self)
    more = [{**found["workloads"][0], "name": name} for name in ("endless", "waits", "done")]
    return {**found, "workloads": [*found["workloads"], *more]}

RunAnswers.listing = listing
build_app().launch(**launch_options())
"""
GOES_AWAY = """
import sys
from gradio_client import Client
Client(sys.argv[1], verbose=False, httpx_kwargs={"timeout": None}).submit("endless", {}, [], "", api_name="/run")
print("asked", flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A page whose runs end when a test touches their gate."""
    with page_of(tmp_path_factory.mktemp("runs"), page=PAGE) as found:
        yield found


@pytest.fixture
def client(fake: Server) -> Any:
    return program(fake.address)


def ask(client: Any, workload: str = "done", **settings: str) -> Any:
    return client.submit(workload, settings, [], "", api_name="/run")


def done(job: Any) -> bool:
    return bool(job.result(timeout=PATIENCE_SECONDS)["workload"] == "done")


def test_a_program_that_is_killed_frees_the_device(fake: Server, client: Any) -> None:
    command = [sys.executable, "-c", GOES_AWAY, fake.address]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as goes:
        assert goes.stdout is not None and goes.stdout.readline() == b"asked\n"
        waits = ask(client)
        goes.kill()
    assert done(waits)


def test_a_tab_that_is_closed_frees_the_device(
    fake: Server, client: Any, context: Any, watched: Callable[[Any], Any]
) -> None:
    page = opened(watched(context), fake.address)
    page.locator("#run-form [name='workload']").select_option("endless")
    expect(page.locator("#run-results .mv-phase").first).to_be_visible()
    waits = ask(client)
    page.close()
    assert done(waits)
