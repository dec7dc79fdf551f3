"""Prices of optimizations: which predictions they need, what they say, and the stored ones of presets."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from memviz.runner import prices
from memviz.runner.listing import listing
from memviz.runner.plan import plan_of
from memviz.runner.prices import Price, load_prices, predictor_here, preset_entry, price_of, price_requests
from memviz.runner.request import Request
from optimizations import OPTIMIZATIONS
from tests.runner.runs import run

SMALL = Request("gpt2", {"layers": "2", "batch": "2", "sequence": "64"}, optimizer="adamw", numerics=False)


@pytest.fixture(scope="module")
def rows() -> dict[str, Any]:
    return listing()


def reasons(base: Request, rows: dict[str, Any]) -> dict[str, str]:
    return {wanted.name: wanted.reason for wanted in price_requests(base, rows) if wanted.request is None}


def test_every_optimization_has_a_request_that_can_be_planned_or_a_short_reason(rows: dict[str, Any]) -> None:
    wanted = price_requests(SMALL, rows)
    assert {each.name for each in wanted} == {kind.name for kind in OPTIMIZATIONS}
    for each in wanted:
        assert (each.request is None) == bool(each.reason)
        assert len(each.reason.split()) <= 4
        if each.request is not None:
            plan = plan_of(each.request)
            assert [optimization.name for optimization in plan.optimizations] == [each.name]
            assert not each.request.numerics


def test_reasons_follow_from_mode_optimizer_batch_and_what_is_on(rows: dict[str, Any]) -> None:
    training = reasons(SMALL, rows)
    assert training["weight_offload"] == "inference only"
    assert training["vae_tiling"] == "inference only"
    assert training["weight_quantization"] == training["layerwise_casting"] == "needs LoRA"
    assert reasons(replace(SMALL, optimizer="none"), rows)["eight_bit_states"] == "needs an optimizer"
    assert reasons(replace(SMALL, settings={"batch": "1"}), rows)["gradient_accumulation"] == "needs larger batch"
    assert reasons(Request("flux"), rows)["checkpointing"] == "training only"
    assert reasons(Request("flux"), rows)["vae_tiling"] == "autoencoders only"
    with_lora = replace(SMALL, optimizations=(("lora", {}),))
    assert reasons(with_lora, rows)["split_feed_forward"] == "not with LoRA"
    assert "weight_quantization" not in reasons(with_lora, rows)


def test_what_is_on_is_priced_by_leaving_it_out(rows: dict[str, Any]) -> None:
    base = replace(SMALL, optimizations=(("lora", {"rank": "8"}), ("checkpointing", {})))
    by_name = {each.name: each for each in price_requests(base, rows)}
    off, on = by_name["checkpointing"], by_name["activation_offload"]
    assert off.is_on and off.request is not None and off.request.optimizations == (("lora", {"rank": "8"}),)
    assert on.request is not None and on.request.optimizations == (*base.optimizations, ("activation_offload", {}))


def test_the_largest_savings_are_expected_first(rows: dict[str, Any]) -> None:
    names = [each.name for each in price_requests(SMALL, rows) if each.request is not None]
    assert names[:3] == ["allocator_settings", "lora", "checkpointing"]
    inference = [each.name for each in price_requests(Request("flux"), rows) if each.request is not None]
    assert inference[:2] == ["allocator_settings", "weight_offload"]
    assert {*prices._TRAINING, *prices._INFERENCE} <= {kind.name for kind in OPTIMIZATIONS}


def test_a_price_is_the_difference_of_two_runs(rows: dict[str, Any]) -> None:
    predict = predictor_here()
    base, checkpointed = predict(SMALL), predict(replace(SMALL, optimizations=(("checkpointing", {}),)))
    assert not isinstance(base, str) and not isinstance(checkpointed, str)
    price = price_of("checkpointing", base, checkpointed)
    assert price.allocated_bytes == checkpointed.peak_allocated_bytes - base.peak_allocated_bytes
    assert price.flops is not None and price.flops > 0
    assert price.seconds_low is not None and price.seconds_high is not None and price.seconds_high > 0
    assert price.reason == ""
    assert Price.from_json(price.as_json()) == price


def test_a_refusal_is_said_in_four_words() -> None:
    assert prices.refused_price("checkpointing", "No blocks were found. They are …").reason == "no repeated blocks"
    assert prices.refused_price("checkpointing", "Something else.").reason == "not for this model"
    assert all(len(words.split()) <= 4 for _, words in prices._REASONS)


def test_stored_prices_are_those_of_a_preset_as_it_is() -> None:
    if load_prices(Request("feed_forward")) is None:
        pytest.skip("the stored prices are of other releases of the libraries")
    assert load_prices(Request("feed_forward", {"batch": "2", "dtype": "fp32"}, card="NVIDIA GeForce RTX 4090"))
    for other in (
        Request("feed_forward", {"batch": "3"}),
        Request("feed_forward", card="H200"),
        Request("feed_forward", optimizations=(("checkpointing", {}),)),
        Request("feed_forward", warmup=2),
        Request("train.py:model"),
    ):
        assert load_prices(other) is None


def made_run(request: Request, reserved: int) -> Any:
    return run(request=request, peak_reserved_bytes=reserved)


def test_prices_of_one_optimization_are_made_anew_and_all_others_kept(
    rows: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    preset = next(row for row in rows["workloads"] if row["name"] == "feed_forward")
    entry = preset_entry(preset, rows, lambda request: made_run(request, 0))
    before = {"libraries": prices._releases(), "presets": {"feed_forward": entry, "llama": {}}}
    monkeypatch.setattr("memviz.runner.listing.listing", lambda: {**rows, "workloads": [preset]})
    monkeypatch.setattr(prices, "predictor_here", lambda: lambda request: made_run(request, len(request.optimizations)))
    monkeypatch.setattr(prices, "_stored", lambda: before)
    monkeypatch.setattr(prices, "_FILE", tmp_path / "prices.json")
    prices._make(["weight_offload"])
    made = [{**price, "reserved_bytes": 1} if price["name"] == "weight_offload" else price for price in entry["prices"]]
    assert json.loads(prices._FILE.read_text())["presets"] == {"feed_forward": {**entry, "prices": made}, "llama": {}}


STORED = tuple(prices._presets())
_ALL = ("feed_forward", "gpt2", "vae")
"""Presets that are quickly predicted, all of whose prices are made again; of others the baseline and allocator's."""


def _is_made_again(preset: str, optimization: str) -> bool:
    return preset in _ALL or optimization == "allocator_settings"


def test_the_price_of_every_optimization_is_made_again_for_a_preset() -> None:
    made = {price["name"] for preset in _ALL for price in prices._presets()[preset]["prices"] if not price["reason"]}
    stored = {price["name"] for entry in prices._presets().values() for price in entry["prices"] if not price["reason"]}
    assert made == stored


@pytest.mark.slow
@pytest.mark.parametrize("name", STORED)
def test_stored_prices_are_what_is_predicted(name: str, rows: dict[str, Any]) -> None:
    if prices._stored()["libraries"] != prices._releases():
        pytest.skip("the stored prices are of other releases of the libraries")
    row = next(row for row in rows["workloads"] if row["name"] == name)
    predict = predictor_here()

    def predict_some(request: Request) -> Any:
        is_made = all(_is_made_again(name, optimization) for optimization, _ in request.optimizations)
        return predict(request) if is_made else "left out"

    made, stored = preset_entry(row, rows, predict_some), dict(prices._presets()[name])
    for entry in (made, stored):
        entry["prices"] = {price["name"]: price for price in entry["prices"] if _is_made_again(name, price["name"])}
    differing = [key for key, price in made["prices"].items() if stored["prices"].get(key) != price]
    assert made == stored, f"Make the prices anew: python -m memviz.runner.prices {' '.join(differing) or name}"
