"""Host memory of predicted programs, summed by hand: pinned in blocks of a power of two, pageable to the byte."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import memviz
from memviz.analysis.findings.finding import FindingKind
from memviz.analysis.findings.ranking import findings
from memviz.errors import TraceError
from memviz.predictor import host
from memviz.predictor.host import HostPeak
from memviz.results.findings import findings_result
from memviz.results.summary import summary_result
from memviz.trace.load import load_trace
from memviz.trace.memviz_labels import to_text
from memviz.trace.model import Trace
from memviz.trace.write import snapshot_dict, write_pickle
from memviz.ui.explore.findings import findings_html
from memviz.ui.payloads.timelines import timeline_value
from optimizations.weight_offload import WeightOffload
from tests.traces import MiB, read

MB = 10**6


def layers(count: int) -> nn.Sequential:
    """4 MiB of weights each."""
    return nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(count)))


def predicted(body: Any, **more: Any) -> HostPeak:
    with memviz.predicting(**more) as done:
        kept = body()
    del kept
    assert done.estimate is not None
    return done.estimate.host


def pinned(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, pin_memory=True)


def test_pinned_tensors_take_blocks_of_a_power_of_two_that_torch_keeps_for_the_next_of_their_size() -> None:
    def body(last: int) -> Any:
        for _ in range(3):
            pinned(3 * MB)
        return pinned(last)

    assert predicted(lambda: [pinned(3 * MB) for _ in range(2)]) == HostPeak(0, 2 * 4 * MiB)
    assert predicted(partial(body, 5 * MB)) == HostPeak(0, (4 + 8) * MiB)
    assert predicted(partial(body, 3 * MB)) == HostPeak(0, 4 * MiB)


@pytest.mark.parametrize(
    ("settings", "kept"), [("pinned_max_round_threshold_mb:2", 2 * 3 * MB), ("pinned_max_cached_size_mb:2", 3 * MB)]
)
def test_settings_bound_what_is_rounded_and_kept(settings: str, kept: int) -> None:
    def body() -> Any:
        pinned(3 * MB)
        first = pinned(3 * MB)
        del first
        return pinned(3 * MB + 1)

    assert predicted(body, settings=settings).bytes == kept + 1


def test_results_that_a_list_keeps_add_up_and_a_model_leaves_the_host_as_it_moves() -> None:
    def results() -> Any:
        kept = [torch.ones(MiB, device="cuda").cpu() for _ in range(5)]
        views = [one[:10].view(2, 5) for one in kept]
        del kept[:2]
        return kept, views

    assert predicted(results) == HostPeak(5 * 4 * MiB, 0)
    assert predicted(lambda: (layers(3).cuda(), layers(1))) == HostPeak(3 * 4 * MiB, 0)


def test_states_of_an_optimizer_of_host_weights_are_on_the_host() -> None:
    def body() -> Any:
        model = layers(2)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        for weight in model.parameters():
            weight.grad = torch.zeros_like(weight)
        optimizer.step()
        return optimizer

    # Weights, gradients and two moments; a counter for each weight, and the step's temporaries of one weight.
    held = 4 * 2 * 4 * MiB + 2 * 4
    assert held < predicted(body).pageable_bytes <= held + 3 * 4 * MiB


def test_weights_that_are_offloaded_are_pinned_one_after_the_other() -> None:
    def offloaded() -> Any:
        model = nn.Sequential(*(nn.Linear(1000, 1000, bias=False) for _ in range(3))).cuda()
        WeightOffload("leaf").apply(model)
        with torch.no_grad():
            model(torch.ones(1, 1000, device="cuda"))
        return model

    def waiting() -> Any:
        model = layers(3)
        WeightOffload("leaf", onload_device="cuda").apply(model)
        return model

    # Blocks of 4 MiB for weights of 4 MB, more than the weights took before they moved to the card.
    assert predicted(offloaded) == HostPeak(0, 3 * 4 * MiB)
    # The last of them is there twice.
    assert predicted(waiting) == HostPeak(4 * MiB, 3 * 4 * MiB)


def test_a_loader_with_pinned_memory_pins_its_batches() -> None:
    def body() -> Any:
        rows = torch.zeros(4, 3 * MB, dtype=torch.uint8)
        kept = [batch for (batch,) in DataLoader(TensorDataset(rows), batch_size=2, pin_memory=True)]
        return rows, kept

    peak = predicted(body)
    assert peak.pinned_bytes == 2 * 8 * MiB
    # The rows, and the batch that is pinned, which is stacked from copies of its rows.
    assert 12 * MB <= peak.pageable_bytes <= 12 * MB + 12 * MB


def test_a_checkpoint_that_is_loaded_counts_beside_the_model(tmp_path: Path) -> None:
    torch.save(layers(2).state_dict(), tmp_path / "model.pt")

    def body() -> Any:
        model = layers(2)
        model.load_state_dict(torch.load(tmp_path / "model.pt", map_location="cpu"))
        return model

    assert predicted(body) == HostPeak(2 * 2 * 4 * MiB, 0)


def test_equal_processes_share_a_machine() -> None:
    peak = HostPeak(3 * MiB, MiB)
    assert peak.fits(None, 8) is None
    assert peak.fits(32 * MiB, 8) is True and peak.fits(32 * MiB - 1, 8) is False


def lane(body: Any, **more: Any) -> tuple[Trace, list[list[int]]]:
    """Return the trace, and the rows of host memory without their events."""
    with memviz.predicting(**more) as done:
        kept = body()
    del kept
    kept_rows = done.trace.devices[0].host
    assert kept_rows is not None
    return done.trace, np.stack([column for name, column in kept_rows.columns() if name != "event"], axis=1).tolist()


def test_host_memory_is_kept_over_the_events_and_stays_in_the_file(tmp_path: Path) -> None:
    def body() -> Any:
        weights = torch.empty(4 * MiB, dtype=torch.uint8)
        first = weights.cuda()
        del weights
        second = pinned(3 * MB).cuda()
        return first, second

    trace, rows = lane(body)
    assert rows == [[4 * MiB, 0, 0, 0], [0, 0, 0, 0], [4 * MiB, 4 * MiB, 3 * MB, 0]]
    kept = trace.devices[0].host
    assert kept is not None and kept.event.tolist() == [0, 2, 2]
    path = tmp_path / "run.pickle"
    with path.open("wb") as file:
        write_pickle(trace, file)
    assert load_trace(path).devices[0].host == kept
    told = {"counts": "CPU tensors", "peak_bytes": 4 * MiB, "pinned_bytes": 0, "event": -1}
    host = summary_result(trace).as_json()["devices"][0]["host"]
    assert (host["bill"]["most_bytes"], {**host, "bill": None}) == (4 * MiB, {**told, "bill": None})
    value = timeline_value(trace, trace.devices[0], "key")["host"]
    assert (value["of"], value["peak"], value["rows"][0]) == ("tensors", 4 * MiB, [0, 4 * MiB, 0])


def test_little_host_memory_has_no_lane() -> None:
    trace, _ = lane(lambda: (torch.zeros(8, device="cuda").cpu(), torch.zeros(MiB, device="cuda")))
    assert "host" not in timeline_value(trace, trace.devices[0], "key")


def test_weights_that_are_saved_leave_the_host(tmp_path: Path) -> None:
    def body() -> Any:
        model = layers(3).cuda()
        torch.save(model.state_dict(), tmp_path / "model.pt")
        return model

    _, rows = lane(body)
    assert rows[-1] == [0, 0, 0, 0]
    # Only one of them at a time is on the host to be written.
    assert [row[0] for row in rows].count(3 * 4 * MiB) == 1


def test_a_long_program_has_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_MOST_ROWS", 20)

    def body() -> Any:
        for number in range(100):
            torch.empty((number % 50 + 1) * MB, dtype=torch.uint8).cuda()

    trace, rows = lane(body)
    assert len(rows) <= 21 and max(row[0] for row in rows) == 50 * MB
    assert (np.diff(trace.devices[0].host.event) >= 0).all()


@pytest.mark.parametrize(
    ("column", "values"),
    [("event", [1 << 40]), ("event", [-1]), ("total", [-1]), ("pinned", [1 << 61]), ("loaded", [1, 2])],
)
def test_host_memory_that_cannot_be_is_refused(column: str, values: list[int]) -> None:
    trace, _ = lane(lambda: torch.ones(MiB).cuda())
    root = snapshot_dict(trace)
    whole = {name: to_text(np.zeros(1, dtype="<i8")) for name, _ in trace.devices[0].host.columns()}
    root["memviz"]["devices"][0]["host"] = {**whole, column: to_text(np.array(values, dtype="<i8"))}
    with pytest.raises(TraceError, match="memviz"):
        read(root)


def said(trace: Trace) -> dict[FindingKind, Any]:
    return {one.kind: one for one in findings(trace, trace.devices[0]) if one.kind.startswith("host_")}


def test_weights_that_every_rank_loads_are_found(tmp_path: Path) -> None:
    torch.save(layers(4).state_dict(), tmp_path / "model.pt")

    def body() -> Any:
        model = layers(4).cuda()
        model.load_state_dict(torch.load(tmp_path / "model.pt", map_location="cpu"))
        return model

    trace, _ = lane(body, world_size=8)
    (finding,) = said(trace).values()
    assert (finding.kind, finding.bytes) == (FindingKind.HOST_LOADED_BY_EACH, 8 * 4 * 4 * MiB)
    assert "8 × 16.0 MiB" in finding.sentence
    row = findings_result(trace).as_json()["findings"][-1]
    assert row["key"] == "host_loaded_by_each_process-1"
    assert "8 × 16.0 MiB" in str(findings_html(trace, trace.devices[0]))
    assert said(lane(body)[0]) == {}


def test_pinned_blocks_and_growth_of_the_host_are_found() -> None:
    def body(each_step: Any = None) -> Any:
        model = layers(1).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        kept = [pinned(5 * MiB)]
        for _ in range(6):
            output = model(torch.randn(256, 1024, device="cuda"))
            output.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if each_step is not None:
                kept.append(each_step(output))
        return kept

    found = said(lane(body)[0])
    assert {kind: one.bytes for kind, one in found.items()} == {FindingKind.HOST_PINNED_ROUNDING: 3 * MiB}
    grown = said(lane(lambda: body(lambda output: output.detach().cpu()))[0])[FindingKind.HOST_GROWING]
    assert grown.bytes == 4 * MiB and "grows by 1.00 MiB" in grown.sentence
