"""What only a real GPU can tell, a case a test. Without `-m gpu` all are skipped."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gpu.case import Case
from tests.gpu.parts import CASES
from tests.gpu.rounds import Round
from tests.gpu.tables import differing, in_a_line


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_case(case: Case, gpu_round: Round, record_property: Any) -> None:
    why_not = gpu_round.why_not(case)
    if why_not:
        pytest.skip(f"{case.id}: {why_not}")
    failed = gpu_round.carry_out(case)
    if failed:
        pytest.fail(failed, pytrace=False)
    found = gpu_round.results.read(case.part, case.name)
    assert found is not None
    record_property("found", in_a_line(found))
    if differing(found):
        pytest.fail("\n".join(differing(found)), pytrace=False)
