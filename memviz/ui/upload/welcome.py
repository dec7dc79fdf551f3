"""The page before anything is open: what it is for, how a snapshot is recorded, and samples to start with."""

from __future__ import annotations

from memviz.figures.packed_timeline import data_address
from memviz.ui.html.markup import Html, tag
from memviz.ui.upload.sample_cards import card_of
from memviz.ui.upload.samples import OFFERED_SAMPLES, OfferedSample
from memviz.units import bytes_text, delta_text

RECORD = """# before the model is built
torch.cuda.memory._record_memory_history()
try:
    train_a_few_steps()
finally:  # also when it runs out of memory
    torch.cuda.memory._dump_snapshot("run.pickle")
    torch.cuda.memory._record_memory_history(enabled=None)"""


def welcome_html() -> Html:
    lead = "Every allocation over time, what the peak is made of, and what changed between two runs."
    return tag("header", tag("h1", "See what fills your GPU."), tag("p", lead, class_="mv-lead"), class_="mv-welcome")


def record_html() -> Html:
    copy = tag("button", "Copy", type="button", data_mv_copy=RECORD)
    safe = tag("p", "Reading a file never runs code from it. No GPU needed here.", class_="mv-soft")
    head = tag("h2", "No snapshot yet? Record one", copy)
    return tag("section", head, tag("pre", RECORD, tabindex="0"), safe, class_="mv-record")


def samples_html(tab: str = "") -> Html:
    """`tab` is where they are offered to be answered; each has a tab of its own otherwise."""
    offered = [sample for sample in OFFERED_SAMPLES if not tab or len(sample.files) == 1]
    cards = [_card(sample, tab) for sample in sorted(offered, key=lambda sample: sample.tab != tab)]
    return tag("section", tag("h2", "Or start with a sample"), tag("div", *cards, class_="mv-samples"))


def _card(sample: OfferedSample, tab: str) -> Html:
    card = card_of(sample)
    pictures = [tag("img", src=data_address(picture), alt="") for picture in card.pictures]
    first, last = card.peaks[0], card.peaks[-1]
    change = f"{delta_text(last - first)}" if len(card.peaks) > 1 else f"{bytes_text(first)} peak"
    where = "" if tab else f"{sample.tab.replace('-', ' ').capitalize()} · "
    return tag(
        "button",
        tag("span", *pictures, class_="mv-pictures"),
        tag("b", sample.title),
        tag("span", sample.text),
        tag("small", f"{where}{change} · predicted"),
        type="button",
        data_act="sample",
        data_sample=sample.name,
        data_tab=tab or None,
        class_="mv-sample",
    )
