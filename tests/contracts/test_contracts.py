"""Every answer equals its golden file, byte for byte. To update them: `python -m tests.contracts`."""

import json
from collections.abc import Iterator
from difflib import unified_diff

import pytest

from tests.contracts.cases import GOLDEN, RELEASES, Case, all_cases
from tests.contracts.workplace import Workplace, releases

MOST_LINES = 80


@pytest.fixture(scope="module")
def workplace() -> Iterator[Workplace]:
    with Workplace() as place:
        yield place


def each(*, asks_page: bool) -> pytest.MarkDecorator:
    # tests/programs runs those programs, and holds them to this file.
    chosen = [case for case in all_cases() if case.asks_page == asks_page and case.name != "program-peaks.json"]
    return pytest.mark.parametrize(
        "case", [pytest.param(case, id=case.name, marks=[pytest.mark.slow] if case.is_slow else []) for case in chosen]
    )


def hold(case: Case, workplace: Workplace) -> None:
    made_with = json.loads(RELEASES.read_text(encoding="utf-8"))
    if case.is_predicted and made_with != releases():
        pytest.skip(f"was predicted with {made_with}, and here are {releases()}")
    known = (GOLDEN / case.name).read_text(encoding="utf-8").splitlines()
    changes = list(unified_diff(known, case.text(workplace).splitlines(), "before", "now", n=2, lineterm=""))
    assert not changes, "\n".join([f"If meant: python -m tests.contracts {case.name}", *changes[:MOST_LINES]])


@each(asks_page=False)
def test_it_is_as_it_was(case: Case, workplace: Workplace) -> None:
    hold(case, workplace)


class TestEndpoints:
    """`-k TestEndpoints`: these start a page."""

    @each(asks_page=True)
    def test_it_is_as_it_was(self, case: Case, workplace: Workplace) -> None:
        pytest.importorskip("gradio_client")
        hold(case, workplace)


def test_every_file_has_a_case() -> None:
    names = [case.name for case in all_cases()]
    assert sorted([*names, RELEASES.name]) == sorted(path.name for path in GOLDEN.iterdir())
