"""The event wiring from the page to Gradio, as the running page reports it to browsers."""

import json
from urllib.request import urlopen

SHOW_HOW_FAR_THEY_ARE = {"_share"}
"""Events with a progress display, each on one component that holds nothing else."""


def test_no_event_shows_progress_on_what_it_answers(server: str) -> None:
    """At each word on progress Gradio would copy all that these components hold, in the visitor's browser."""
    with urlopen(f"{server}config") as answer:
        events = json.load(answer)["dependencies"]
    ours = [event for event in events if event["outputs"] and event["api_visibility"] != "public"]
    assert len(ours) > 30
    showing = {event["api_name"]: event for event in ours if event["show_progress_on"] != []}
    assert {name.rstrip("_0123456789") for name in showing} == SHOW_HOW_FAR_THEY_ARE
    assert all(len(event["show_progress_on"] or event["outputs"]) == 1 for event in showing.values())
