"""The default device of a trace."""

from typing import Any

import pytest

from memviz.analysis.devices import choose_device, others_out_of_memory
from memviz.errors import UsageError
from memviz.trace.model import Trace
from tests.traces import alloc, read

OOM = {"action": "oom", "size": 512, "stream": 0, "device_free": 1}


def devices(*peaks: int, failed: tuple[int, ...] = (), **more: Any) -> Trace:
    traces = [[alloc(1, peak), *([OOM] if number in failed else [])] for number, peak in enumerate(peaks)]
    return read({"segments": [], "device_traces": traces, **more})


@pytest.mark.parametrize(
    ("trace", "name"),
    [
        (devices(5, 9, 7), "1"),
        (devices(5, 9, 7, failed=(0,)), "0"),
        (devices(5, 9, 7, failed=(0, 2)), "2"),
        (devices(7, 7), "0"),
        (devices(5, host_traces=[[alloc(1, 99)]]), "0"),
    ],
)
def test_the_one_that_ran_out_of_memory_comes_first_then_the_highest_peak(trace: Trace, name: str) -> None:
    assert choose_device(trace).name == name


def test_whoever_asks_for_one_gets_it_or_hears_which_there_are() -> None:
    trace = devices(5, 9, failed=(1,))
    assert choose_device(trace, "0").name == "0"
    with pytest.raises(UsageError, match="has no device 7. Its devices: 0, 1"):
        choose_device(trace, "7")


def test_failures_elsewhere_are_known() -> None:
    trace = devices(5, 9, 3, failed=(1, 2))
    assert [others_out_of_memory(trace, device) for device in trace.devices] == [("1", "2"), ("2",), ("1",)]
