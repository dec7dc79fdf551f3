"""The page before anything is open: what it is for, how a snapshot is recorded, and samples to start with."""

from __future__ import annotations

from memviz.figures.thumbnail import data_address
from memviz.ui.html.markup import Html, tag
from memviz.ui.upload.sample_cards import card_of
from memviz.ui.upload.samples import OFFERED_SAMPLES, OfferedSample
from memviz.units import bytes_text, delta_text

RECORD = """# before the model is built
torch.cuda.memory._record_memory_history()
model = build(); train(model, steps=3)
torch.cuda.memory._dump_snapshot("run.pickle")"""


def welcome_html() -> Html:
    lead = "Every allocation over time, what the peak is made of, and what changed between two runs."
    return tag("header", tag("h1", "See what fills your GPU."), tag("p", lead, class_="mv-lead"), class_="mv-welcome")


def record_html() -> Html:
    copy = tag("button", "Copy", type="button", data_mv_copy=RECORD)
    safe = tag("p", "Reading a file never runs code from it. No GPU needed here.", class_="mv-soft")
    head = tag("h2", "No snapshot yet? Record one", copy)
    return tag("section", head, tag("pre", RECORD, tabindex="0"), safe, class_="mv-record")


def samples_html() -> Html:
    cards = [_card(sample) for sample in OFFERED_SAMPLES]
    return tag("section", tag("h2", "Or start with a sample"), tag("div", *cards, class_="mv-samples"))


def _card(sample: OfferedSample) -> Html:
    card = card_of(sample)
    pictures = [tag("img", src=data_address(picture), alt="") for picture in card.pictures]
    first, last = card.peaks[0], card.peaks[-1]
    change = f"{delta_text(last - first)}" if len(card.peaks) > 1 else f"{bytes_text(first)} peak"
    tab = sample.tab.replace("-", " ").capitalize()
    return tag(
        "button",
        tag("span", *pictures, class_="mv-pictures"),
        tag("b", sample.title),
        tag("span", sample.text),
        tag("small", f"{tab} · {change} · predicted"),
        type="button",
        data_act="sample",
        data_sample=sample.name,
        class_="mv-sample",
    )
