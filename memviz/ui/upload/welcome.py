"""The page before anything is open: what it is for, how a snapshot is recorded, and samples to start with."""

from __future__ import annotations

from functools import cache

from memviz.analysis.timeline import timeline
from memviz.analysis.which_device import chosen_device
from memviz.figures.thumbnail import data_address, thumbnail
from memviz.trace.load import load_trace
from memviz.ui.html.markup import Html, tag
from memviz.ui.upload.samples import OFFERED_SAMPLES, SAMPLES, OfferedSample
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


@cache
def _card(sample: OfferedSample) -> Html:
    """Pictures and figures come from the files themselves. The samples never change, so they are drawn once."""
    traces = [load_trace(SAMPLES / name) for name in sample.files]
    devices = [chosen_device(trace) for trace in traces]
    peaks = [timeline(device).peak_bytes for device in devices]
    width = 520 // len(traces)
    pictures = [
        tag("img", src=data_address(thumbnail(trace, device, width=width, height=300, top=max(peaks))), alt="")
        for trace, device in zip(traces, devices, strict=True)
    ]
    change = f"{delta_text(peaks[-1] - peaks[0])}" if len(peaks) > 1 else f"{bytes_text(peaks[0])} peak"
    return tag(
        "button",
        tag("span", *pictures, class_="mv-pictures"),
        tag("b", sample.title),
        tag("span", sample.text),
        tag("small", f"{sample.tab.capitalize()} · {change} · predicted"),
        type="button",
        data_act="sample",
        data_sample=sample.name,
        class_="mv-sample",
    )
