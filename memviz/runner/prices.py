"""Prices of optimizations: what each would change if it alone were switched, as predictions relative to a base.

A page lists them without PyTorch in its own process: `price_requests` names the predictions, workers make them, and
`price_of` compares two runs. Prices of the presets are in `prices.json`, made by `python -m memviz.runner.prices`:
all of them, those of the named presets, or in every preset those of the named optimizations.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from memviz.errors import MemvizError, UsageError
from memviz.predictor.cards import card_named, is_native
from memviz.runner.fit.cost import Cost, Work, cost_of, speed_of
from memviz.runner.request import Optimizer, Request, Run, knob_text, library_versions, parallel_of

_FILE = Path(__file__).with_name("prices.json")
PRESET_OPTIMIZER: Optimizer = "adamw"
"""Optimizer of the stored prices where a preset trains."""

_TRAINING = (
    *("allocator_settings", "lora", "checkpointing", "activation_offload", "eight_bit_states", "optimizer_in_backward"),
    *("weight_quantization", "layerwise_casting", "gradient_accumulation", "chunked_cross_entropy"),
    *("split_feed_forward", "chunked_feed_forward", "attention_backend", "flat_gradients"),
)
_INFERENCE = (
    *("allocator_settings", "weight_offload", "weight_quantization", "layerwise_casting", "vae_tiling", "kv_cache"),
    *("vae_slicing", "chunked_feed_forward", "split_feed_forward", "attention_backend"),
)
"""Allocator settings first, since a replay of the base answers at once; then what usually saves most."""
_NEEDS_FROZEN_WEIGHTS = ("layerwise_casting", "weight_quantization")
_ONE_GPU_WORDS = "one GPU only"
_REASONS = (
    ("no feed-forward was recognised", "no known feed-forward"),
    ("cannot be split", "unknown feed-forward"),
    ("equal slices", "size not divisible"),
    ("no blocks were found", "no repeated blocks"),
    ("no language model with a loss", "language models only"),
    ("logits before the loss", "logits are changed"),
    ("computes no attention", "no attention"),
    ("computes attention by itself", "own attention kernel"),
    ("kernel does not support", "kernel not available"),
    ("no available kernel", "kernel not available"),
    ("is trained", "needs LoRA"),
    ("are trained", "needs LoRA"),
    ("no linear layer", "no linear layers"),
    ("nothing to cast", "nothing to cast"),
    ("save nothing", "weights small already"),
    ("batch of", "needs larger batch"),
    ("autoencoder", "autoencoders only"),
    ("with a kv cache", "language models only"),
    ("on one gpu only", _ONE_GPU_WORDS),
    ("not installed", "library not installed"),
    ("cannot be combined with", "conflicts with another"),
)
"""Parts of messages of the optimizations, and the same in at most four words."""


@dataclass(frozen=True)
class Price:
    """Changes relative to the base; all figures are None where the optimization cannot be used."""

    name: str
    reserved_bytes: int | None = None
    allocated_bytes: int | None = None
    flops: int | None = None
    seconds_low: float | None = None
    seconds_high: float | None = None
    """Change of the ends of the estimated interval of a step; None on a card whose speed is unknown."""
    reason: str = ""
    """Why it cannot be used, in at most four words."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Price:
        return cls(**value)


@dataclass(frozen=True)
class PriceRequest:
    name: str
    request: Request | None
    """The prediction to make; None where the optimization cannot be used."""
    reason: str = ""
    is_on: bool = False
    """True where the base has the optimization, and the request is without it."""

    @property
    def price(self) -> Price | None:
        """The price, where no prediction is needed."""
        return None if self.request is not None else Price(self.name, reason=self.reason)


def price_requests(base: Request, listing: Mapping[str, Any]) -> list[PriceRequest]:
    """Return a request or a reason for every optimization of `listing()`, largest expected saving first."""
    plain = replace(base, on="predict", numerics=False, label="")
    wanted = "config.json" if base.config else base.workload
    own: Mapping[str, Any] = {"name": "own", "knobs": (), "holds": None}
    workload = next((row for row in listing["workloads"] if row["name"] == wanted), own)
    knobs = {**{knob["name"]: knob_text(knob["default"]) for knob in workload["knobs"]}, **base.settings}
    order = {name: place for place, name in enumerate(_TRAINING if _is_training(knobs) else _INFERENCE)}
    rows = sorted(listing["optimizations"], key=lambda row: order.get(row["name"], len(order)))
    return [_price_request(row, rows, workload, knobs, plain) for row in rows]


def _price_request(
    row: Mapping[str, Any],
    rows: list[Mapping[str, Any]],
    workload: Mapping[str, Any],
    knobs: Mapping[str, str],
    base: Request,
) -> PriceRequest:
    name = row["name"]
    others = tuple((other, values) for other, values in base.optimizations if other != name)
    if len(others) < len(base.optimizations):
        return PriceRequest(name, replace(base, optimizations=others), is_on=True)
    reason = _conflict(row, rows, base) or _reason_by_mode(row, workload, knobs, base)
    if reason:
        return PriceRequest(name, None, reason)
    return PriceRequest(name, replace(base, optimizations=(*others, (name, {}))))


def _conflict(row: Mapping[str, Any], rows: list[Mapping[str, Any]], base: Request) -> str:
    chosen = dict(base.optimizations)
    for other in rows:
        if other["name"] in chosen and (other["name"] in row["not_with"] or row["name"] in other["not_with"]):
            words = other["name"].replace("feed_forward", "feed-forward").replace("_", " ")
            return f"not with {words.replace('lora', 'LoRA')}"
    return ""


def _reason_by_mode(
    row: Mapping[str, Any], workload: Mapping[str, Any], knobs: Mapping[str, str], base: Request
) -> str:
    name, trains = row["name"], _is_training(knobs)
    if reason := reason_by_model(row, workload, ["training" if trains else "inference"]):
        return reason
    if row["needs_optimizer"] and base.optimizer == "none":
        return "needs an optimizer"
    if row["needs_cache"] and knobs.get("cache", "true") == "false":
        return "needs cache=true"
    has_adapters = knobs.get("mode") == "lora" or "lora" in dict(base.optimizations)
    if name in _NEEDS_FROZEN_WEIGHTS and trains and not has_adapters and workload["name"] != "own":
        return "needs LoRA"
    if name == "gradient_accumulation" and int(knobs.get("batch", "2")) < 2:
        return "needs larger batch"
    return ""


def reason_by_model(row: Mapping[str, Any], workload: Mapping[str, Any] | None, modes: Sequence[str]) -> str:
    """Return why an optimization has no effect on this model in any of these modes; else an empty text."""
    if modes and row["needs"] not in ("any", *modes):
        return f"{row['needs']} only"
    holds = workload.get("holds") if workload is not None else None
    if holds is not None and row.get("only_on") and row["only_on"] not in holds:
        return "autoencoders only" if "autoencoder" in row["only_on"] else "language models only"
    return ""


def _is_training(knobs: Mapping[str, str]) -> bool:
    # A preset without this knob has one mode, which is training.
    return knobs.get("mode", "training") != "inference"


def price_of(name: str, base_run: Run, run: Run) -> Price:
    """Compare the base with the run in which one optimization was switched."""
    before, after = run_cost(base_run), run_cost(run)
    return Price(
        name,
        reserved_bytes=run.peak_reserved_bytes - base_run.peak_reserved_bytes,
        allocated_bytes=run.peak_allocated_bytes - base_run.peak_allocated_bytes,
        flops=(run.flops or 0) - (base_run.flops or 0),
        seconds_low=_relative_difference(after.seconds_low, before.seconds_low),
        seconds_high=_relative_difference(after.seconds_high, before.seconds_high),
    )


def _relative_difference(after: float | None, before: float | None) -> float | None:
    # Rounded, since machines differ in the last digits.
    return None if after is None or before is None else round(after - before, 9)


def refused_price(name: str, text: str) -> Price:
    """Return the price of an optimization whose prediction failed with this message."""
    lowered = text.lower()
    return Price(name, reason=next((words for part, words in _REASONS if part in lowered), "not for this model"))


def run_cost(run: Run) -> Cost:
    """Return what a step costs: its work, and its time as an estimate where the card's speed is known."""
    card, parallel = card_named(run.request.card), parallel_of(run.request.parallel)
    preset = _presets().get(run.request.workload, {})
    dtype = str(run.request.settings.get("dtype") or preset.get("settings", {}).get("dtype", ""))
    work = Work(run.flops or 0, run.bytes_moved or 0, run.host_bytes or 0, run.link_bytes or 0)
    # Ranks of a pipeline wait for each other, which a price does not count.
    speed = speed_of(card.model) if parallel.pipeline == 1 else None
    return cost_of(work, speed, dtype if is_native(dtype, card) else "fp32")


# -- the stored prices of presets


def load_prices(request: Request) -> list[Price] | None:
    """Return the stored prices of a preset at its default sizes on the default card; None for other requests.

    Prices of another release of PyTorch or of a model's library are not returned.
    """
    preset = _presets().get(request.workload)
    if preset is None or not _is_plain(request, preset) or _stored()["libraries"] != _releases():
        return None
    return [Price.from_json(row) for row in preset["prices"]]


def _is_plain(request: Request, preset: Mapping[str, Any]) -> bool:
    settings = preset["settings"]
    if any(settings.get(name) != text for name, text in request.settings.items()):
        return False
    try:
        card = card_named(request.card).name
    except UsageError:
        return False
    plain = replace(request, settings={}, card="", label="", numerics=False, on="predict")
    return card == preset["card"] and plain == Request(
        request.workload, card="", numerics=False, optimizer=preset["optimizer"]
    )


@lru_cache(maxsize=1)
def _stored() -> dict[str, Any]:
    try:
        stored: dict[str, Any] = json.loads(_FILE.read_text(encoding="utf-8"))
    except OSError:
        return {"libraries": {}, "presets": {}}
    return stored


def _presets() -> Mapping[str, Any]:
    presets: dict[str, Any] = _stored()["presets"]
    return presets


def _releases() -> dict[str, str]:
    return {name: release.partition("+")[0] for name, release in library_versions().items()}


Predict = Callable[[Request], "Run | str"]
"""Returns the run, or why there is none."""


def preset_entry(row: Mapping[str, Any], listing: Mapping[str, Any], predict: Predict) -> dict[str, Any]:
    """Predict what `prices.json` holds for one preset."""
    settings = {knob["name"]: knob_text(knob["default"]) for knob in row["knobs"]}
    optimizer: Optimizer = PRESET_OPTIMIZER if _is_training(settings) else "none"
    # The time of a step depends on the dtype, which a run names only if it was requested.
    asked = {name: settings[name] for name in ("dtype",) if name in settings}
    base = Request(row["name"], asked, optimizer=optimizer, numerics=False)
    base_run = predict(base)
    if isinstance(base_run, str):
        raise UsageError(f"{row['name']} cannot be predicted: {base_run}")
    prices = []
    for wanted in price_requests(base, listing):
        run = wanted.reason if wanted.request is None else predict(wanted.request)
        if wanted.request is None:
            prices.append(Price(wanted.name, reason=wanted.reason))
        else:
            prices.append(
                refused_price(wanted.name, run) if isinstance(run, str) else price_of(wanted.name, base_run, run)
            )
    card = card_named(base.card).name
    rows = [price.as_json() for price in prices]
    return {"settings": settings, "card": card, "optimizer": optimizer, "prices": rows}


def predictor_here() -> Predict:
    """Return what predicts in this process, as a search's worker does."""
    # The page imports this module, and its process has no PyTorch.
    from memviz.runner.jobs.worker import SearchPredictions
    from memviz.runner.step import Interrupted

    predictions = SearchPredictions(lambda kind, number, **rest: None)

    def predict(request: Request) -> Run | str:
        try:
            return predictions.run_of(request, lambda phase: None)
        except Interrupted as ended:
            return str(ended.__cause__)
        except (MemvizError, ValueError) as error:
            return str(error)

    return predict


def _make(names: list[str]) -> None:
    from memviz.runner.listing import listing

    rows, predict = listing(), predictor_here()
    presets = dict(_presets()) if names else {}
    named = {row["name"] for row in rows["optimizations"]} & set(names)

    def predict_named(request: Request) -> Run | str:
        chosen = dict(request.optimizations)
        return predict(request) if not chosen or named & chosen.keys() else "not asked for"

    for row in rows["workloads"]:
        name = row["name"]
        if name == "config.json" or (names and not named and name not in names):
            continue
        is_whole = not named or name not in presets
        entry = preset_entry(row, rows, predict if is_whole else predict_named)
        if not is_whole:
            stored = {price["name"]: price for price in presets[name]["prices"] if price["name"] not in named}
            entry["prices"] = [stored.get(price["name"], price) for price in entry["prices"]]
        presets[name] = entry
    # One line a preset, so that a change of one is seen as one.
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in presets.items())
    text = f'{{"libraries": {json.dumps(_releases())}, "presets": {{\n{lines}\n}}}}\n'
    _FILE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    import sys

    _make(sys.argv[1:])
