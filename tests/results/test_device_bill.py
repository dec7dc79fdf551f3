"""The bill of a device: lines that add up, each with its basis, and the same table as the verdict's."""

import json
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from memviz.allocator.context import (
    ALL_KERNELS,
    HOPPER,
    LOADING_FACT,
    MATH_LIBRARIES,
    NCCL_FACT,
    OUTSIDE_FACT,
    UNKNOWN,
    Communicator,
    communicators_of,
    communicators_text,
    libraries_fact,
    nccl_bytes,
)
from memviz.predictor.accuracy import doubt_on
from memviz.predictor.cards import card_named
from memviz.results.device_bill import device_bill, host_bill
from memviz.results.summary import summary_result
from memviz.trace.memviz_labels import CARD_FACT, CHILDREN_FACT, WORLD_FACT, ChildMemory
from memviz.trace.model import About, HostBytes, Trace
from memviz.ui.explore.answer import verdict_html
from tests.traces import MiB, alloc, block, segment, trace_of

NAMES = {"nccl_communicators": NCCL_FACT, "outside_PyTorch": OUTSIDE_FACT}
H100 = "NVIDIA H100 80GB HBM3"


def trace(origin: str = "predicted", on: str = H100, **facts: str) -> Trace:
    made = trace_of([alloc(0, 3 * MiB)], [segment(0, 20 * MiB, [block(0, 3 * MiB)])])
    return replace(
        made, about=About(origin, on=on, facts={NAMES.get(name, name): text for name, text in facts.items()})
    )


def bill_lines(of: Trace) -> list[tuple[str, int | None, int | None, str]]:
    bill = device_bill(of, of.devices[0])
    assert bill is not None
    return [(line.name, line.least_bytes, line.most_bytes, line.basis) for line in bill.rows]


def test_the_lines_add_up_to_an_interval() -> None:
    of = trace()
    assert bill_lines(of) == [
        ("reserved by PyTorch", 20 * MiB, 20 * MiB, "predicted"),
        ("CUDA context", HOPPER.least_bytes - 64 * MiB, HOPPER.most_bytes - 112 * MiB, "estimated"),
        ("cuBLAS and cuDNN", *MATH_LIBRARIES, "estimated"),
        ("other libraries", None, None, "unknown"),
    ]
    bill = device_bill(of, of.devices[0])
    assert bill is not None and (bill.least_bytes, bill.most_bytes) == (532 * MiB, 788 * MiB)
    assert bill.headline.answer == f"nvidia-smi would show 532 MiB to 788 MiB on {H100}."
    told = json.loads(json.dumps(bill.as_json()))
    assert told["most_bytes"] == sum(line["most_bytes"] or 0 for line in told["lines"])
    assert summary_result(of).as_json()["devices"][0]["device_bill"] == told


def test_a_file_of_others_is_read_and_its_card_unknown() -> None:
    reserved, context, math, _ = bill_lines(trace("measured", ""))
    assert reserved[3] == "read"
    assert [context[i] + math[i] for i in (1, 2)] == [UNKNOWN.least_bytes, UNKNOWN.most_bytes]


@pytest.mark.parametrize("facts", [{"cuda": "11.3"}, {LOADING_FACT: "EAGER"}])
def test_a_context_with_all_kernels_is_larger(facts: dict[str, str]) -> None:
    """CUDA loads them lazily since 11.7, unless told otherwise."""
    assert sum(line[2] or 0 for line in bill_lines(trace("measured", **facts))) == 20 * MiB + ALL_KERNELS.most_bytes
    lazy = bill_lines(trace("measured", cuda="12.8", **{LOADING_FACT: "LAZY"}))
    assert sum(line[2] or 0 for line in lazy) == 20 * MiB + HOPPER.most_bytes


def test_libraries_with_memory_of_their_own_have_a_line_each() -> None:
    pool = SimpleNamespace(get_default_memory_pool=lambda: SimpleNamespace(total_bytes=lambda: 3 * MiB))
    assert not libraries_fact({"torch": None})
    fact = libraries_fact({"cupy": pool, "jax": None})
    rows = bill_lines(trace("measured", **fact))
    assert rows[3:5] == [("CuPy", 3 * MiB, 3 * MiB, "read"), ("JAX", None, None, "unknown")]
    of = trace("measured", outside_PyTorch=f"0: {9 * MiB} to {9 * MiB} bytes, 1 reading", **fact)
    bill = device_bill(of, of.devices[0])
    assert bill is not None and bill.most_bytes == 29 * MiB and "3.00 MiB CuPy" in bill.rows[1].source


def test_a_replay_is_on_the_card_of_its_recording() -> None:
    settings = "expandable_segments:True"
    on_card = trace("replayed", settings, **{CARD_FACT: H100})
    bill = device_bill(on_card, on_card.devices[0])
    assert bill is not None and bill.card == H100
    unknown = trace("replayed", settings)
    bill = device_bill(unknown, unknown.devices[0])
    assert bill is not None and bill.card == "" and settings not in bill.headline.answer


def test_pinned_memory_of_the_host_has_no_bill() -> None:
    of = trace()
    assert device_bill(of, replace(of.devices[0], kind="host")) is None


def test_what_the_driver_measured_takes_the_place_of_estimates() -> None:
    of = trace("measured", outside_PyTorch=f"1: 1 to 2 bytes, no; 0: {700 * MiB} to {710 * MiB} bytes, 3 readings")
    assert OUTSIDE_FACT in of.about.facts
    assert bill_lines(of) == [
        ("reserved by PyTorch", 20 * MiB, 20 * MiB, "measured"),
        ("outside PyTorch", 700 * MiB, 710 * MiB, "measured"),
    ]
    page = verdict_html(of, of.devices[0])
    assert "720 MiB to 730 MiB" in page and "Compare with nvidia-smi" not in page


@pytest.mark.parametrize(
    ("one", "card", "reading_mib"),
    [
        (Communicator(1), "NVIDIA H200", 0.62 * 1024),
        (Communicator(2), "NVIDIA A100 80GB", 544),
        (Communicator(4), "NVIDIA A100 80GB", 688),
        (Communicator(8, True), H100, (4.34 - 1.06) * 1024),
    ],
)
def test_public_readings_lie_in_the_interval_of_nccl(one: Communicator, card: str, reading_mib: float) -> None:
    """One process of an H200, nccl#964 on 4 A100 with NVLink, and nccl#1685: what an all-to-all of 8 H100 added."""
    least, most = nccl_bytes(Counter([one]), card)
    assert least <= reading_mib * MiB <= most


def test_communicators_are_read_back_from_the_facts_of_a_file() -> None:
    used = [Communicator(8), Communicator(8), Communicator(2, True)]
    assert communicators_of({NCCL_FACT: communicators_text(used)}) == Counter(used)
    assert not communicators_of({NCCL_FACT: "<b>" * 1000})


def test_the_verdict_sets_aside_what_the_bill_says() -> None:
    """A peak that surely fits leaves room for the most of every line."""
    card = card_named("A100 80GB")
    of = trace(on=card.name, nccl_communicators="2 of 8 ranks")
    bill = device_bill(of, of.devices[0])
    assert bill is not None
    surely = doubt_on(card, None, of).surely_fitting_peak(card.memory_bytes)
    assert surely + bill.most_bytes - 20 * MiB == card.memory_bytes
    assert doubt_on(card, None).surely_fitting_peak(card.memory_bytes) > surely


def test_a_recording_of_ranks_has_a_share_of_nccl() -> None:
    """Its groups say it, else its world size; where only stacks tell of NCCL, the size is unknown."""
    two = bill_lines(trace("measured", nccl_communicators="2 of 8 ranks"))
    assert two[3] == ("NCCL, 2 communicators", *nccl_bytes(Counter({Communicator(8): 2}), H100), "estimated")
    by_world = bill_lines(trace("measured", **{WORLD_FACT: "8"}))
    assert by_world[3] == ("NCCL, 1 communicator", *nccl_bytes(Counter([Communicator(8)]), H100), "estimated")

    file = "/site-packages/torch/distributed/distributed_c10d.py"
    of = trace_of([alloc(0, MiB, frames=[{"name": "all_reduce", "filename": file, "line": 3}])])
    assert bill_lines(of)[3] == ("NCCL", None, None, "unknown")
    assert "NCCL" not in {line[0] for line in bill_lines(trace("measured"))}

    of = trace("measured", outside_PyTorch=f"0: {MiB} to {MiB} bytes, 1 reading", nccl_communicators="1 of 8 ranks")
    bill = device_bill(of, of.devices[0])
    assert bill is not None and bill.most_bytes == 21 * MiB
    assert "in it" in bill.rows[1].source and "NCCL, 1 communicator (estimated)" in bill.rows[1].source


def test_host_memory_has_a_bill_with_a_line_of_data_loader_workers() -> None:
    children = ChildMemory(2, 30 * MiB, 4 * MiB)
    columns = (np.array(column) for column in ([0, 1], [MiB, 8 * MiB], [0, 6 * MiB], [0, 0], [0, 0]))
    of = trace(**children.facts)
    device = replace(of.devices[0], host=HostBytes.typed(*columns), is_timed=False)
    bill = host_bill(of, device)
    assert bill is not None and bill.most_bytes == (8 + 34) * MiB
    assert [(line.most_bytes, line.basis) for line in bill.rows] == [
        (2 * MiB, "predicted"),
        (6 * MiB, "predicted"),
        (34 * MiB, "estimated"),
        (None, "unknown"),
    ]
    recorded = host_bill(trace("measured", **children.facts), replace(device, is_timed=True))
    assert recorded is not None and [line.basis for line in recorded.rows] == ["measured", "measured"]
    unknown = host_bill(trace(**ChildMemory(1, None).facts), device)
    assert unknown is not None and unknown.rows[2].most_bytes is None and "system does not report" in unknown.unknown
    assert not ChildMemory.of({CHILDREN_FACT: "<b>" * 100}).count
    assert host_bill(of, of.devices[0]) is None
