"""The button that measures: each measured row stands below what was predicted, with the difference in percent."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.browser.conftest import expect, page_of
from tests.browser.test_run import done, fill, press, row, small, switch, verdict

PAGE = """
from memviz.runner import execute
from memviz.ui.app import build_app, launch_options
from memviz.ui.run import answer
from tests import forked
from tests.runner.failing_gpu import FailingGpu

gpu = FailingGpu()
measure, listing = execute.measure, answer.listing


def measured(*arguments, **named):
    with gpu.in_torch():
        return measure(*arguments, **named)


execute.find_accelerator = lambda: gpu.accelerator
execute.measure = measured
answer.listing = lambda programs: {**listing(programs), "device": "Fake GPU"}
forked.runs_from_here()
build_app().launch(**launch_options())
"""
"""Its runs are forked from this process, where `torch.cuda` is a fake that counts the tensors of the processor."""


@pytest.fixture
def runs(tmp_path: Any) -> Iterator[Any]:
    with page_of(tmp_path, page=PAGE) as server:
        yield server


def mib(cell: str) -> float:
    figure, unit = cell.replace(",", "").split()[:2]
    return float(figure) * {"KiB": 1 / 1024, "MiB": 1, "GiB": 1024}[unit]


def test_what_is_measured_stands_beside_what_was_predicted(tab: Any) -> None:
    small(tab)
    # The processor takes its time for a step of a GPU.
    fill(tab, dim="128", sequence="64", layers="1")
    switch(tab, "split_feed_forward").check()
    done(tab, 2)
    press(tab, "Measure on GPU")
    expect(tab.locator("#run-progress")).to_contain_text(re.compile("variant|predicting"))
    done(tab, 4)
    expect(row(tab, 1)).to_contain_text("Baseline, measured")
    expect(row(tab, 3)).to_contain_text("Split feed-forward, measured")
    for number in (1, 3):
        cells, predicted = (row(tab, at).locator("td").all_inner_texts() for at in (number, number - 1))
        reserved, _, _, allocated, _, step = range(6)
        for measured, expected in ((cells[at], predicted[at]) for at in (reserved, allocated)):
            difference = re.search(r"([+-][\d.]+) % of predicted", measured)
            assert difference and "of predicted" not in expected
            assert float(difference[1]) == pytest.approx(100 * (mib(measured) / mib(expected) - 1), abs=1)
        assert re.search(r"[\d.]+ ms", cells[step]) and "estimated" not in cells[step]
    expect(row(tab, 2)).to_contain_text("estimated")
    expect(verdict(tab)).to_contain_text("plit feed-forward")
