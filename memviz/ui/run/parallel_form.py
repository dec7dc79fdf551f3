"""How many GPUs share a run, and along which axes: the fields, what they mean, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from memviz.errors import UsageError
from memviz.runner.parallel.parallelism import AXES, GPUS, parallel_of
from memviz.ui.html.markup import Html, joined, tag
from memviz.units import count_text

PREFIX = "p:"
_COUNTS = (1, 2, 3, 4, 6, 8, 16, 32, 64, 128, 256, 512, 1024)
_WORDS = {
    "data": ("Copies", "whole models, each with a batch of its own, that sum their gradients"),
    "shard": ("Shards", "parts of weights, gradients and optimizer states; empty is what the others leave"),
    "tensor": ("Tensor", "parts of each matrix and of the sequence; decoders such as Llama and Qwen3"),
    "pipeline": ("Stages", "of a pipeline, each with some of a decoder's blocks"),
}
_HOW = (
    "As training scripts do it: FSDP2 shards block by block, DDP copies, DTensor parts matrices, 1F1B runs stages. "
    "The batch is that of one GPU. One rank of each class of equal ones is predicted. "
    "Where no axis is set, the search for the way that fits tries them all."
)


def parallel_fields_html(texts: Mapping[str, str]) -> tuple[Html, Html]:
    """The count, which stands beside the card, and the axes below it."""
    chosen = texts.get(GPUS, "1")
    counts = [tag("option", count_text(count), value=str(count), selected=str(count) == chosen) for count in _COUNTS]
    label = tag("label", tag("span", "GPUs"), tag("select", *counts, name_=f"{PREFIX}{GPUS}"), class_="mv-wide")
    axes = [_axis(name, texts.get(name, "")) for name in _WORDS]
    fold = tag(
        "details",
        tag("summary", "Parallel ", tag("span", data_part="parallel")),
        tag("p", _HOW, class_="mv-soft"),
        tag("div", *axes, class_="mv-knobs mv-axes"),
        class_="mv-more",
    )
    fault = tag("p", class_="mv-fault", data_fault=f"{PREFIX}{GPUS}", role="alert")
    return label, joined(fault, fold)


def _axis(name: str, text: str) -> Html:
    words, help = _WORDS[name]
    field = tag(
        "input", type="text", name_=PREFIX + name, value=text, placeholder="rest" if name == "shard" else "1",
        inputmode="numeric", autocomplete="off", spellcheck="false",
    )  # fmt: skip
    fault = tag("p", class_="mv-fault", data_fault=PREFIX + name, role="alert")
    return tag("label", tag("span", words), field, fault, title=f"{words}: {help}", class_="mv-wide")


def texts_of(fields: Mapping[str, object]) -> dict[str, str]:
    named = {name: str(fields[PREFIX + name]).strip() for name in (GPUS, *AXES) if PREFIX + name in fields}
    return {name: text for name, text in named.items() if text}


def asked_of(texts: Mapping[str, str], on: str) -> dict[str, str]:
    """What a run is asked for: nothing of one GPU, whatever stands in the fold, nor of one that is measured."""
    return dict(texts) if on == "predict" and texts.get(GPUS, "1") != "1" else {}


def parallel_faults(texts: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    try:
        parallel_of(texts)
    except UsageError as error:
        yield place_of_refusal(str(error)) or PREFIX + GPUS, str(error)


def place_of_refusal(words: str) -> str:
    """The field of an axis, where the refusal begins with its name."""
    first = words.split(" ", 1)[0]
    return PREFIX + first if first in (GPUS, *AXES) else ""


def parallel_words(texts: Mapping[str, str]) -> str:
    try:
        return parallel_of(texts).words if texts else "1 GPU"
    except UsageError:
        return ""
