"""What `-m gpu` adds to pytest: which cases are carried out, for how long, and where their results go."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.machine import ROOT, has_gpu, known_outside
from tests.gpu.parts import PARTS
from tests.gpu.process import Processes
from tests.gpu.results import Results
from tests.gpu.rounds import Round
from tests.gpu.tables import write_readme, write_samples

_DEFAULTS: dict[str, Any] = {
    "out": ROOT / ".gpu-results", "part": tuple(PARTS), "minutes": 8.0, "small": False, "again": False, "write": False
}  # fmt: skip
"""Also where the options are not known: pytest asks only the folders of its command line for them."""


def parts(text: str) -> tuple[str, ...]:
    wanted = [each.strip() for each in text.split(",") if each.strip()]
    unknown = [each for each in wanted if each not in PARTS]
    if unknown:
        raise ArgumentTypeError(f"there is no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    return tuple(wanted)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("gpu", "what only a real GPU can tell (-m gpu)")
    group.addoption("--out", type=Path, default=_DEFAULTS["out"], metavar="OUT", help="folder for all results")
    group.addoption("--part", type=parts, default=_DEFAULTS["part"], metavar="PART,...", help=f"of {', '.join(PARTS)}")
    group.addoption("--minutes", type=float, default=8.0, help="what does not fit is left out (default: %(default)s)")
    group.addoption("--small", action="store_true", help="a short round of every part")
    group.addoption("--again", action="store_true", help="also what is in OUT already")
    group.addoption("--write", action="store_true", help="fill the tables of tests/gpu/README.md")


def asked(config: pytest.Config, name: str) -> Any:
    return config.getoption(name, _DEFAULTS[name])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    cases = [item for item in items if item.get_closest_marker("gpu")]
    if config.option.markexpr != "gpu":
        for case in cases:
            case.add_marker(pytest.mark.skip(reason="for a machine with a GPU: `pytest -m gpu`"))
        return
    left_out = {case for case in cases if not is_wanted(case.callspec.params["case"], config)}  # type: ignore[attr-defined]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=list(left_out))


def is_wanted(case: Any, config: pytest.Config) -> bool:
    return case.part in asked(config, "part") and (case.small or not asked(config, "small"))


@pytest.fixture(scope="session")
def gpu_round(pytestconfig: pytest.Config) -> Iterator[Round]:
    results = Results(asked(pytestconfig, "out").resolve())
    results.folder.mkdir(parents=True, exist_ok=True)
    processes = Processes(results, known_outside())
    seconds = 60 * asked(pytestconfig, "minutes")
    yield Round(results, seconds, cache(has_gpu), processes.carry_out, asked(pytestconfig, "again"))
    processes.end()


def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, str] | None:
    """What was found, beside the case's name."""
    found = dict(getattr(report, "user_properties", ())).get("found")
    return ("passed", ".", f"PASSED {found}") if found and report.when == "call" and report.passed else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    results = Results(asked(config, "out").resolve())
    if config.option.markexpr != "gpu" or not results.folder.exists():
        return
    if len(results.measured_on()) > 1:
        names = " and ".join(sorted(results.measured_on()))
        terminalreporter.line(f"OUT mixes {names}: keep one folder for each, or use --again.")
    table = write_samples(results)
    if table is not None:
        terminalreporter.line(f"The samples' table is {table}.")
    if asked(config, "write"):
        terminalreporter.line(f"README.md has new tables: {', '.join(write_readme(results)) or 'none'}.")
