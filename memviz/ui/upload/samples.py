"""The samples and the page before anything is open.

Pictures and peaks of the samples are kept in sample_cards.json, because drawing them takes half of a page's start;
`python -m memviz.ui.upload.samples` draws them again, and a test compares.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from memviz.analysis.devices import choose_device
from memviz.analysis.timeline import timeline
from memviz.figures.packed_timeline import data_address, thumbnail
from memviz.text import Html, joined, tag
from memviz.trace.load import load_trace
from memviz.ui.html.elements import button
from memviz.units import bytes_text, delta_text

_INSTALLED = Path(__file__).parents[2] / "sample_traces"
SAMPLES = _INSTALLED if _INSTALLED.is_dir() else Path(__file__).parents[3] / "sample_traces"
"""Inside memviz in a wheel, next to it in a checkout."""


@dataclass(frozen=True)
class OfferedSample:
    name: str
    title: str
    text: str
    files: tuple[str, ...]
    tab: str


_PLAIN, _CHECKPOINTED = "training.pickle.gz", "training-checkpointed.pickle.gz"
_STEPS, _PAIR = "Three training steps of a small GPT.", "The same steps with and without, on one scale."
_FULL, _LATE = "144 MiB did not fit, although more was free.", "Memory from before it is still counted."
OFFERED_SAMPLES = (
    OfferedSample("training", "What is the peak made of?", _STEPS, (_PLAIN,), "explore"),
    OfferedSample("checkpointing", "What does checkpointing save?", _PAIR, (_PLAIN, _CHECKPOINTED), "compare"),
    OfferedSample("out-of-memory", "Why did it run out of memory?", _FULL, ("out-of-memory.pickle.gz",), "what-if"),
    OfferedSample("late-start", "What if recording started late?", _LATE, ("late-start.pickle.gz",), "explore"),
)


def find_sample(name: str) -> OfferedSample | None:
    return next((sample for sample in OFFERED_SAMPLES if sample.name == name), None)


_CARDS = Path(__file__).with_name("sample_cards.json")
_WIDTH, _HEIGHT = 520, 300


@cache
def load_cards() -> dict[str, dict[str, Any]]:
    """One peak and one picture (base64) for each file of each sample, the pictures on one scale."""
    cards: dict[str, dict[str, Any]] = json.loads(_CARDS.read_text(encoding="utf-8"))
    return cards


def draw_card(sample: OfferedSample) -> dict[str, Any]:
    traces = [load_trace(SAMPLES / name) for name in sample.files]
    pairs = [(trace, choose_device(trace)) for trace in traces]
    peaks = [timeline(device).peak_bytes for _, device in pairs]
    width = _WIDTH // len(traces)
    pictures = [thumbnail(*pair, width=width, height=_HEIGHT, top=max(peaks)) for pair in pairs]
    return {"peaks": peaks, "pictures": [base64.b64encode(picture).decode("ascii") for picture in pictures]}


def write_cards() -> None:
    cards = {sample.name: draw_card(sample) for sample in OFFERED_SAMPLES}
    _CARDS.write_text(json.dumps(cards, indent=1) + "\n", encoding="utf-8")


RECORD = """# before the model is built
torch.cuda.memory._record_memory_history()
try:
    train_a_few_steps()
finally:  # also when it runs out of memory
    torch.cuda.memory._dump_snapshot("run.pickle")
    torch.cuda.memory._record_memory_history(enabled=None)"""


def welcome_html() -> Html:
    lead = "Every allocation over time, what the peak holds, what changed between runs."
    return tag("header", tag("h1", "See what fills your GPU."), tag("p", lead, class_="mv-lead"), class_="mv-welcome")


def record_html() -> Html:
    copy = button("Copy", None, None, data_mv_copy=RECORD)
    safe = tag("p", "Reading a file never runs its code. No GPU needed.", class_="mv-soft")
    head = tag("h2", "No snapshot yet? Record one", copy)
    return tag("section", head, tag("pre", RECORD, tabindex="0"), safe, class_="mv-record")


def samples_html(tab: str = "") -> Html:
    """`tab` is where they are offered to be answered; each has a tab of its own otherwise."""
    offered = [sample for sample in OFFERED_SAMPLES if not tab or len(sample.files) == 1]
    cards = [_card_html(sample, tab) for sample in sorted(offered, key=lambda sample: sample.tab != tab)]
    return tag("section", tag("h2", "Or a predicted sample"), tag("div", *cards, class_="mv-samples"))


def _card_html(sample: OfferedSample, tab: str) -> Html:
    card = load_cards()[sample.name]
    images = [tag("img", src=data_address(base64.b64decode(picture)), alt="") for picture in card["pictures"]]
    first, last = card["peaks"][0], card["peaks"][-1]
    change = tag("small", delta_text(last - first) if len(card["peaks"]) > 1 else f"{bytes_text(first)} peak")
    pictures = tag("span", *images, class_="mv-pictures")
    words = joined(pictures, tag("b", sample.title), tag("span", sample.text), change)
    return button(words, "sample", "mv-sample", data_sample=sample.name, data_tab=tab or None)


if __name__ == "__main__":
    write_cards()
