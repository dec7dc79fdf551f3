"""The Run form: its requests, the faults at its fields, and a config.json in it, which is never a path."""

import asyncio
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest

from memviz.errors import UsageError
from memviz.runner.config_source import SWITCH
from memviz.runner.jobs.limits import most_bytes
from memviz.runner.listing import listing
from memviz.ui.run.answer import AT_HOME, ON_A_SPACE, RunAnswers, run_limits
from memviz.ui.run.form import (
    FIRST_MEMORY,
    OTHER_CARD,
    FormFields,
    RunRequests,
    changed,
    config_of,
    field_of_refusal,
    form_fields_of,
    link_of,
    read_link,
    requests_of,
    without_effect,
)
from memviz.ui.run.form_html import (
    NO_DEVICE,
    TERMS,
    buttons_html,
    config_field_html,
    form_html,
    form_value,
    refused_html,
)
from memviz.ui.run.predictions import request_key
from memviz.ui.run.programs import predict_run
from memviz.ui.run.published_examples import story_fields
from tests.facts import missing
from tests.ui.page import elements, words


def knob(name: str, default: Any, type: str = "int", choices: tuple[Any, ...] = (), says: str = "") -> dict[str, Any]:
    row = {"name": name, "type": type, "default": default, "help": f"{name}?"}
    return {**row, "choices": choices, "unit": "", "says": says}


def optimization(name: str, *knobs: dict[str, Any], needs: str = "any", **not_with: str) -> dict[str, Any]:
    row = {"name": name, "title": name.capitalize(), "sentence": f"Does {name}.", "claim": "bitwise"}
    return {**row, "needs": needs, "not_with": not_with, "group": "Weights", "offered": 0, "knobs": list(knobs)}


LISTING: dict[str, Any] = {
    "workloads": [
        {
            "name": "tiny",
            "title": "Tiny",
            "sentence": "A tiny model.",
            "knobs": [
                knob("batch", 1),
                knob("mode", "inference", "text", ("inference", "training")),
                knob("note", "", "text"),
            ],
        },
        {
            "name": "other",
            "title": "Other",
            "sentence": "Another <model>.",
            "knobs": [knob("way", "fast", "text", ("fast", "small", "exact"))],
        },
    ],
    "optimizations": [
        optimization("split", knob("parts", 4), knob("only", "", "text")),
        optimization(
            "checkpoint", knob("every", 1, says="every {nth} block"), knob("offload", False, "bool"), needs="training"
        ),
        optimization("cast", split="Cast layers cannot be split."),
    ],
    "cards": [
        {"name": "NVIDIA X", "memory_bytes": 8 << 30, "kind": "Laptops", "unproven": True},
        {"name": "NVIDIA Y", "memory_bytes": 24 << 30, "kind": "Desktops", "unproven": False},
    ],
    "device": None,
}


def asked(**fields: Any) -> RunRequests:
    spelled = {key.replace("__", ":"): value for key, value in fields.items()}
    return requests_of(form_fields_of({"workload": "tiny", "card": "NVIDIA Y", **spelled}, LISTING), LISTING)


def runs(found: RunRequests) -> list[tuple[str, dict[str, str], dict[str, dict[str, str]]]]:
    pairs = zip(found.labels, found.requests, strict=True)
    return [
        (label, dict(each.settings), {name: dict(knobs) for name, knobs in each.optimizations}) for label, each in pairs
    ]


def test_fields_and_their_faults_have_places_but_not_what_the_workload_decides() -> None:
    form = form_fields_of({"workload": "tiny", "w:mode": "training", "o:split": True}, LISTING)
    html = form_html(form, LISTING)
    for name in ("w:batch", "w:mode", "o:split:parts", "warmup", "steps", "optimizer"):
        assert f'data-fault="{name}"' in html
    # Its own default would be shown there while the workload's number runs.
    listing = {**LISTING, "optimizations": [optimization("flat", knob("micro_batches", 4), knob("joined", 1))]}
    html = form_html(form_fields_of({"workload": "tiny"}, listing), listing)
    assert ("o:flat:joined" in html, "o:flat:micro_batches" in html) == (True, False)


def test_values_of_knobs_and_optimizations_make_variants() -> None:
    assert runs(asked(o__split=True, o__split__parts="2, 4,8")) == [
        ("Baseline", {}, {}),
        ("Split, parts 2", {}, {"split": {"parts": "2"}}),
        ("Split, parts 4", {}, {"split": {}}),
        ("Split, parts 8", {}, {"split": {"parts": "8"}}),
    ]
    found = asked(o__split=True, o__checkpoint=True, o__checkpoint__every="1, 2", w__mode="training")
    assert runs(found) == [
        ("Baseline", {"mode": "training"}, {}),
        ("Split + every block", {"mode": "training"}, {"split": {}, "checkpoint": {}}),
        ("Split + every 2nd block", {"mode": "training"}, {"split": {}, "checkpoint": {"every": "2"}}),
    ]
    assert runs(asked(w__batch="1,2", o__split=True)) == [
        ("batch 1: Baseline", {}, {}),
        ("batch 1: Split", {}, {"split": {}}),
        ("batch 2: Baseline", {"batch": "2"}, {}),
        ("batch 2: Split", {"batch": "2"}, {"split": {}}),
    ]
    every = [("fast: Baseline", {}), ("small: Baseline", {"way": "small"}), ("exact: Baseline", {"way": "exact"})]
    for text in ("*", "fast, small, exact"):
        assert [(label, settings) for label, settings, _ in runs(asked(workload="other", w__way=text))] == every
    assert [label for label, _, _ in runs(asked(workload="other", w__way=""))] == ["Baseline"]
    assert runs(asked(w__note="a, b"))[0][1] == {"note": "a, b"}
    assert runs(asked(o__split=True, o__split__only="x,y"))[1][2] == {"split": {"only": "x,y"}}
    assert runs(asked(o__split__parts="2, 8")) == [("Baseline", {}, {})]
    many = ",".join(map(str, range(3000)))
    found = asked(w__batch=many, o__split=True, o__split__parts=many, o__split__only="x")
    assert (found.requests, found.faults["run"].split(",")[0]) == ((), "These would be 9")


@pytest.mark.parametrize(
    ("fields", "labels"),
    [
        ({"every": "4, 2, 1"}, ["Every 4th block", "Every 2nd block", "Every block"]),
        ({"every": "3, 11, 12, 21, 103"}, [f"Every {nth} block" for nth in ("3rd", "11th", "12th", "21st", "103rd")]),
        ({"every": "2", "offload": True}, ["Checkpoint, every 2nd block, offload true"]),
        ({"every": "two"}, ["Every two block"]),
        ({"every": "1"}, ["Checkpoint"]),
    ],
)
def test_variants_are_called_as_people_call_them(fields: dict[str, Any], labels: list[str]) -> None:
    theirs = {f"o__checkpoint__{key}": value for key, value in fields.items()}
    assert list(asked(w__mode="training", o__checkpoint=True, **theirs).labels) == ["Baseline", *labels]


@pytest.mark.parametrize(
    ("fields", "faults"),
    [
        ({"o__checkpoint": True}, {"o:checkpoint": "It works in training only, but this is inference."}),
        ({"o__checkpoint": True, "w__mode": "training"}, {}),
        (
            {"o__checkpoint": True, "w__mode": "*"},
            {"o:checkpoint": "It works in training only, but this is inference."},
        ),
        (
            {"w__batch": "1,2,3,4,5,6", "o__split": True, "o__split__parts": "1,2,3,4,5"},
            {"run": "These would be 36 variants; the limit is 32. Give fewer values."},
        ),
        (
            {"o__cast": True, "o__split": True},
            {"o:cast": "Cast layers cannot be split.", "o:split": "Cast layers cannot be split."},
        ),
        ({"steps": "many"}, {"steps": "Steps are 1 to 100; not many."}),
        ({"warmup": "1000"}, {"warmup": "Warm-up steps are 0 to 100; not 1000."}),
        ({"w__batch": " "}, {"w:batch": "It is empty. Give a value, such as 1."}),
        ({"w__batch": "2, lots"}, {"w:batch": "lots is not a whole number."}),
        ({"w__mode": "resting"}, {"w:mode": "resting is not one of inference, training."}),
        ({"o__split": True, "o__split__parts": "4.5"}, {"o:split:parts": "4.5 is not a whole number."}),
        ({"o__split__parts": "4.5"}, {}),
    ],
)
def test_what_does_not_go_is_said_where_it_stands(fields: dict[str, Any], faults: dict[str, str]) -> None:
    assert dict(asked(**fields).faults) == faults


def test_only_what_the_listing_names_is_taken() -> None:
    """Fields come from a browser; a file of one's own is for the command line."""
    found = requests_of(
        form_fields_of({"workload": "/etc/evil.py:main", "o:rm": True, "o:rm:f": "1"}, LISTING), LISTING
    )
    assert [(request.workload, request.optimizations) for request in found.requests] == [("tiny", ())]


def test_a_card_and_the_step_are_handed_on() -> None:
    (request,) = asked(
        w__mode="training", optimizer="sgd", steps="3", load="device", keep_output=True, numerics=False
    ).requests
    assert (request.card, request.optimizer, request.steps, request.load) == ("NVIDIA Y", "sgd", 3, "device")
    assert (request.keep_output, request.numerics, request.on) == (True, False, "predict")


@pytest.mark.parametrize(
    ("fields", "optimizer"),
    [
        ({"w__mode": "training"}, "adamw"),
        ({"w__mode": "training", "optimizer": "none"}, "none"),
        ({"w__mode": "inference", "optimizer": "adamw"}, "none"),
        ({"workload": "other"}, "none"),
    ],
)
def test_a_training_step_has_adamw_unless_another_is_chosen(fields: dict[str, str], optimizer: str) -> None:
    assert {request.optimizer for request in asked(**fields).requests} == {optimizer}


@pytest.mark.parametrize("conversion, load", [("before", "host"), ("on-host", "host"), ("measured", "device")])
def test_links_with_the_older_name_of_where_weights_are_loaded_still_mean_it(conversion: str, load: str) -> None:
    (request,) = asked(conversion=conversion).requests
    assert request.load == load
    form = form_html(form_fields_of({"workload": "tiny", "conversion": conversion}, LISTING), LISTING)
    assert re.search(rf'<option value="{load}" selected', form)
    assert missing(asked(conversion="elsewhere").faults["run"], "load", "host, device", "elsewhere") == []


def test_a_card_that_is_not_listed_is_stated_by_its_memory() -> None:
    def other(**fields: str) -> tuple[RunRequests, str]:
        form = form_fields_of({"workload": "tiny", "card": OTHER_CARD, **fields}, LISTING)
        return requests_of(form, LISTING), form_html(form, LISTING)

    found, html = other()
    assert found.requests[0].card == FIRST_MEMORY and not found.faults
    (field,) = elements(html, "input", name="memory")
    assert field["value"] == FIRST_MEMORY
    for text in ("48 GiB", "RTX 4090, 48GiB"):
        found, html = other(memory=text)
        assert found.requests[0].card == text and not found.faults
        selected = [option["value"] for option in elements(html, "option") if "selected" in option]
        assert selected.count(OTHER_CARD) == 1
    for text in ("", "lots", "0"):
        found, html = other(memory=text)
        assert list(found.faults) == ["memory"]
        assert elements(html, "p", data_fault="memory")
    listed = form_html(form_fields_of({"workload": "tiny", "card": "NVIDIA Y"}, LISTING), LISTING)
    assert not elements(listed, "input", name="memory")
    assert changed({"workload": "tiny", "card": OTHER_CARD}, {"workload": "tiny", "card": "NVIDIA Y"}, LISTING)[1]


def test_the_form_shows_what_there_is_and_escapes_it() -> None:
    form = form_fields_of({"workload": "other", "o:split": True, "o:split:only": "<i>"}, LISTING)
    html = form_html(form, LISTING)
    assert "Another &lt;model&gt;." in html
    assert 'value="&lt;i&gt;"' in html
    requests = requests_of(form, LISTING)
    with_device = {**LISTING, "device": "NVIDIA Z"}
    assert not elements(buttons_html(requests, LISTING), "button", data_act="measure")
    (measure,) = elements(buttons_html(requests, with_device), "button", data_act="measure")
    assert measure["title"] == "Run it on NVIDIA Z"
    notes = [form_value(form, requests, each, version="1")["parts"]["device"] for each in (LISTING, with_device)]
    assert notes == [NO_DEVICE, ""] and 'data-part="device"' in html


def test_what_would_do_nothing_is_counted_or_says_why() -> None:
    def count(**fields: Any) -> str:
        form = form_fields_of({"workload": "tiny", **fields}, LISTING)
        return words(form_value(form, requests_of(form, LISTING), LISTING, version="1")["parts"]["idle"])

    assert count() == "1 not usable"
    assert count(**{"o:checkpoint": True}) == count(**{"w:mode": "training"}) == ""
    split = {**LISTING["optimizations"][0], "name": "tiles", "only_on": "an autoencoder"}
    for holds, said in (([], "autoencoders only"), (["an autoencoder"], None), (None, None)):
        workloads = [{**LISTING["workloads"][0], "holds": holds}]
        listing = {**LISTING, "workloads": workloads, "optimizations": [{**split, "needs": "any", "not_with": {}}]}
        assert without_effect(FormFields(workload=workloads[0]["name"]), listing).get("tiles") == said


@pytest.mark.parametrize(
    "fields, idle",
    [
        ({"workload": "tiny"}, "training only"),
        ({"workload": "tiny", "w:mode": "training"}, ""),
        ({"workload": "tiny", "w:mode": "inference,training"}, ""),
        ({"workload": "tiny", "o:checkpoint": True}, ""),
        ({"workload": "other"}, ""),
    ],
)
def test_what_would_do_nothing_says_so_before_it_is_switched_on(fields: dict[str, Any], idle: str) -> None:
    form = form_fields_of(fields, LISTING)
    parts = form_value(form, requests_of(form, LISTING), LISTING, version="1")["parts"]
    assert words(parts["price:checkpoint"]) == idle


def test_what_is_said_and_what_has_no_field_stand_above_the_button() -> None:
    form = form_fields_of({"workload": "tiny"}, LISTING)
    refused = replace(requests_of(form, LISTING), faults={"run": "Too many.", "knobs": "Too large.", "w:batch": "x"})
    value = form_value(form, refused, LISTING, version="1", status=refused_html("Nothing was run."))
    assert words(value["parts"]["buttons"]).startswith("Nothing was run. Too many. Too large.")
    assert [field for field in ("run", "knobs") if elements(value["html"], "p", data_fault=field)] == []
    assert elements(value["html"], "p", data_fault="w:batch")


def test_a_knob_with_choices_is_a_menu_or_boxes_to_tick() -> None:
    def drawn(text: str) -> tuple[int, list[str | None]]:
        html = form_html(form_fields_of({"workload": "other", "w:way": text}, LISTING), LISTING)
        boxes = elements(html, "input", name="w:way", type="checkbox")
        return len(elements(html, "select", name="w:way")), [box["value"] for box in boxes if "checked" in box]

    assert drawn("small") == (1, [])
    assert drawn("*") == (0, ["fast", "small", "exact"])
    assert drawn("fast, exact") == (0, ["fast", "exact"])


@pytest.mark.parametrize(
    ("before", "fields", "is_redrawn"),
    [
        ({}, {"workload": "tiny", "w:batch": "2"}, False),
        ({"workload": "tiny"}, {"workload": "tiny", "w:mode": "training"}, True),
        ({"workload": "other"}, {"workload": "other", "w:way": "*"}, True),
        ({"workload": "other", "w:way": "*"}, {"workload": "other", "w:way": "fast"}, False),
        ({"workload": "other", "w:way": "fast"}, {"workload": "other", "w:way": ""}, True),
    ],
)
def test_the_form_is_drawn_anew_only_where_other_fields_stand(
    before: dict[str, Any], fields: dict[str, Any], is_redrawn: bool
) -> None:
    assert changed(fields, before, LISTING) == (fields, is_redrawn)


def test_other_workloads_and_stories_begin_with_their_own_values() -> None:
    fields = {"workload": "other", "w:batch": "2", "steps": "3"}
    assert changed(fields, {"workload": "tiny"}, LISTING) == ({"workload": "other", "steps": "3"}, True)
    fields = story_fields("checkpointing", {"card": "NVIDIA X", "w:batch": "9", "o:cast": True})
    assert (fields["card"], fields["workload"], "w:batch" in fields) == ("NVIDIA X", "ltx_video", False)


@pytest.mark.parametrize(
    ("refusal", "place"),
    [
        ("tiny: batch is 0; the minimum is 1.", "knobs"),
        ("split: parts is 0.", "o:split"),
        ("cast: it is not switched on.", "run"),
        ("No blocks were found.", "run"),
    ],
)
def test_a_refusal_stands_where_it_belongs(refusal: str, place: str) -> None:
    assert field_of_refusal(refusal, asked(o__split=True)) == place


def test_strangers_on_a_space_get_less_than_whoever_is_at_home() -> None:
    for usual, environment in ((AT_HOME, {}), (ON_A_SPACE, {"SPACE_ID": "a/b"})):
        assert run_limits(environment) == replace(usual, memory_bytes=most_bytes(environment))
    told = run_limits({"SPACE_ID": "a/b", "MEMVIZ_MAX_RUN_SECONDS": "30", "MEMVIZ_MAX_RUN_BYTES": "2GiB"})
    assert (told.seconds, told.memory_bytes) == (30, 2 << 30)
    assert ON_A_SPACE.variants < AT_HOME.variants and ON_A_SPACE.seconds < AT_HOME.seconds


def test_axes_are_asked_of_many_gpus_alone_and_faults_stand_at_them() -> None:
    def parallel(**fields: Any) -> list[dict[str, str]]:
        return [dict(each.parallel) for each in asked(**fields).requests]

    assert parallel(p__gpus="8", p__tensor="2", p__shard="") == [{"gpus": "8", "tensor": "2"}]
    assert parallel(p__gpus="1", p__tensor="2") == [{}] == parallel()
    variants = parallel(p__gpus="8", o__split=True)
    assert variants == [{"gpus": "8"}] * 2
    faults = {"p:gpus": {"p__gpus": "8", "p__tensor": "3"}, "p:tensor": {"p__gpus": "8", "p__tensor": "x"}}
    html = form_html(form_fields_of({"workload": "tiny"}, LISTING), LISTING)
    for place, fields in faults.items():
        wrong = asked(**fields)
        assert list(wrong.faults) == [place] and not wrong.count
        assert f'data-fault="{place}"' in html
    requests = asked(p__gpus="8", p__tensor="2")
    assert field_of_refusal("tensor is 2, and this model's heads are 3: it must divide.", requests) == "p:tensor"
    value = form_value(form_fields_of({"workload": "tiny", "p:gpus": "8"}, LISTING), requests, LISTING, version="1")
    assert value["parts"]["parallel"] == "8 GPUs: 8 shard"


def test_a_link_restores_the_form_and_what_is_pinned() -> None:
    fields = {"workload": "tiny", "w:batch": "2", "card": "24GiB", "warmup": "3", "note": "", "p:gpus": "2"}
    pinned = [
        *asked(w__batch="3", card="L4", o__split=True, o__split__parts="2, 8", keep_output=True).requests[1:],
        *asked(w__mode="training", card="24GiB", warmup="3", p__gpus="4").requests,
    ]
    query = dict(parse_qsl(link_of(fields, [(one, "<b>") for one in pinned], "checkpointing", is_search=True)))
    link = read_link(query)
    assert link is not None and (link.story, link.is_search) == ("checkpointing", True)
    assert link.fields == {key: value for key, value in fields.items() if value}
    assert [label for label, _ in link.pins] == ["<b>"] * 3
    again = [requests_of(form_fields_of(own, LISTING), LISTING).requests[-1] for _, own in link.pins]
    assert list(map(request_key, again)) == list(map(request_key, pinned))
    assert read_link({key: query[key] for key in ("tab", "run")}) == replace(link, pins=(), story="", is_search=False)


def test_a_link_is_bounded_and_what_is_no_form_in_it_is_left_out() -> None:
    (request,) = asked(w__note="n" * 2000).requests
    text = link_of({"workload": "tiny"}, [(request, "l" * 999)] * 8, "", is_search=False)
    link = read_link(dict(parse_qsl(text)))
    assert link is not None and len(text) <= 8000 and 0 < len(link.pins) < 8 and len(link.pins[0][0]) < 200
    form = {"tab": "run", "run": '{"workload":"tiny"}'}
    bad = [3, None, [], ["a"], ["a", 3], [{}, {}], ["a", {"w:batch": 2}], ["good", {}], *[["more", {}]] * 20]
    link = read_link({**form, "pins": json.dumps(bad)})
    assert link is not None and [label for label, _ in link.pins] == ["good", *["more"] * 7]
    for pins in ("", "{}", "3", "[" * 5000, "no"):
        assert read_link({**form, "pins": pins}) == replace(link, pins=())
    for run in ("", "[]", "[" * 5000, '{"w:batch":[]}', json.dumps({"w:note": "n" * 9000})):
        assert read_link({"tab": "run", "run": run}) is None


def test_terms_are_of_knobs_that_there_are() -> None:
    listed = listing()
    rows = [("w", row) for row in listed["workloads"]]
    rows += [(f"o:{row['name']}", row) for row in listed["optimizations"]]
    knobs = [(prefix, knob) for prefix, row in rows for knob in row["knobs"]]
    names = {name for prefix, knob in knobs for name in (knob["name"], f"{prefix}:{knob['name']}")}
    names |= {f"{prefix}:{knob['name']}={value}" for prefix, knob in knobs for value in knob["choices"]}
    assert set(TERMS) - names == set()


TINY = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
CONFIG_FIELDS = {"workload": "config.json", "w:sequence": "32", "w:mode": "lora", "card": "NVIDIA GeForce RTX 4090"}


def faults(answers: RunAnswers, **fields: Any) -> dict[str, str]:
    form = form_fields_of({**CONFIG_FIELDS, **fields}, answers.listing())
    return dict(requests_of(form, answers.listing()).faults)


def test_its_text_becomes_the_request_in_few_letters(answers: RunAnswers) -> None:
    form = form_fields_of({**CONFIG_FIELDS, "config": json.dumps(TINY, indent=4)}, answers.listing())
    (request,) = requests_of(form, answers.listing()).requests
    assert (request.workload, request.settings) == ("config.json", {"sequence": "32", "mode": "lora"})
    assert json.loads(request.config) == TINY


def test_lora_trains_so_what_needs_training_goes_with_it(answers: RunAnswers) -> None:
    assert not faults(answers, config=json.dumps(TINY), **{"o:checkpointing": True})
    inference = {"w:mode": "inference", "o:checkpointing": True}
    assert "o:checkpointing" in faults(answers, config=json.dumps(TINY), **inference)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "Paste a config.json here"),
        ("  ", "Paste a config.json here"),
        ('{"model_type": "llama", "auto_map": {"AutoModel": "x.y"}}', "auto_map names custom code"),
        ('{"model_type": "llama", "num_hidden_layers": 10000000}', "10,000,000; the limit is"),
        ("x" * (1 << 20) + "y", "longer than 1,048,576 characters"),
    ],
)
def test_what_does_not_go_is_said_at_the_field(answers: RunAnswers, text: str, words: str) -> None:
    assert words in faults(answers, config=text)["config"]


def test_no_file_of_the_machine_is_read(answers: RunAnswers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    monkeypatch.chdir(tmp_path)
    for path in (str(tmp_path), str(tmp_path / "config.json"), ".", "config.json"):
        assert "not JSON" in faults(answers, config=path)["config"]
    with pytest.raises(UsageError, match="Paste a config.json"):
        asyncio.run(predict_run(answers, "config.json", {}, [], card="", owner=""))


def test_the_hub_is_on_the_page_only_where_its_owner_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SWITCH, raising=False)
    assert "hub" not in config_field_html("").lower()
    assert config_of("somebody/model")[1].startswith("Downloads from the Hugging Face Hub are off here")
    monkeypatch.setenv(SWITCH, "1")
    assert missing(config_field_html(""), "Hugging Face", "owner/model") == []
    monkeypatch.setattr("memviz.ui.run.form.fetch_config", lambda name: json.dumps(TINY).encode())
    assert json.loads(config_of("somebody/model")[0]) == TINY


def test_the_field_is_there_for_this_workload_alone_and_its_text_stays_text(answers: RunAnswers) -> None:
    listing = answers.listing()
    form = form_fields_of({**CONFIG_FIELDS, "config": "</textarea><script>alert(1)</script>"}, listing)
    html = form_html(form, listing)
    assert "<script>" not in html
    assert len(elements(html, "textarea")) == 1
    assert not elements(form_html(form_fields_of({"workload": "gpt2"}, listing), listing), "textarea")
    assert changed(CONFIG_FIELDS, {"workload": "gpt2"}, listing)[1]


@pytest.mark.slow
def test_programs_give_it_among_the_settings(answers: RunAnswers) -> None:
    settings = {"config": TINY, "sequence": 32, "mode": "inference", "dtype": "bf16"}
    found = asyncio.run(predict_run(answers, "config.json", settings, [], card="T4", owner=""))
    assert found["run"]["parameters"] == 2 * 512 * 64 + 2 * (4 * 64 * 64 + 3 * 64 * 128 + 2 * 64) + 64
