"""The models that stand in for a recorded one: what helps against its finding is on there, and has an effect."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from memviz.runner.listing import listing
from memviz.runner.plan import plan_of
from memviz.runner.predict.predicted_run import predict
from memviz.ui.explore.findings import _RUN, _TABS
from memviz.ui.run.form import form_fields_of, requests_of, without_effect
from memviz.ui.run.form_html import stand_in_words
from memviz.ui.run.published_examples import STAND_INS, stand_in_fields

pytestmark = pytest.mark.slow

SMALL = {"gpt2": {"batch": "4"}, "flux": {"double_layers": "2", "single_layers": "2"}}


def test_every_finding_that_leads_to_run_has_one() -> None:
    assert {kind for kind, tab in _TABS.items() if tab == _RUN} == STAND_INS.keys()


@pytest.mark.parametrize("finding", STAND_INS)
def test_what_helps_has_an_effect_on_it(finding: str) -> None:
    offered = json.loads(json.dumps(listing()))
    form = form_fields_of(stand_in_fields(finding, {"card": "NVIDIA L4", "o:lora": True}), offered)
    found = requests_of(form, offered)
    assert (found.faults, found.count, len(form.chosen)) == ({}, 2, 1), "where it runs stays, and nothing else"
    assert form.chosen[0] not in without_effect(form, offered)
    title = next(row["title"] for row in offered["workloads"] if row["name"] == form.workload)
    assert title in stand_in_words(form, offered)
    peaks = []
    for request in found.requests:
        small = replace(request, settings={**request.settings, **SMALL[form.workload]}, numerics=False)
        peaks.append(predict(plan_of(small), lambda _: None).run.peak_reserved_bytes)
    assert peaks[1] < 0.95 * peaks[0]
