from __future__ import annotations

import pytest

from memviz.analysis.findings.ranking import findings
from memviz.errors import UsageError
from memviz.ui.explore.findings import findings_html
from memviz.ui.payloads.timelines import lit_rows
from tests.analysis.findings.steps import Loop
from tests.analysis.training import BUILD
from tests.traces import MiB, alloc, frame, trace_of
from tests.ui.page import elements, words


def _seven_leaks():
    loop = Loop()
    for step in range(3):
        loop.forward()
        for line in range(7):
            loop.make(100 + 10 * line + step, 5 + line, [frame("keep", "/p/list.py", line + 1)])
        loop.backward().step().without_gradient()
    return loop.trace()


def test_the_first_five_are_seen_the_others_folded_and_in_a_saved_page_none_leads_anywhere():
    trace = _seven_leaks()
    html = findings_html(trace, trace.devices[0], "key/0")
    assert len(elements(html, "li")) == 7
    seen, folded = html.split("<details>")
    assert len(elements(seen, "li")) == 5
    assert "2 more" in words(folded)
    assert [mark["class"] for mark in elements(html, "details") if "class" in mark] == ["mv-fold"]
    assert words(html).startswith("Findings 22.0 MiB What is made by list.py:7 keep and lives on grows by 11.0 MiB")
    trace = _seven_leaks()
    html = findings_html(trace, trace.devices[0])
    assert not elements(html, "button")
    assert "data-light-by" not in html
    assert len(elements(html, "li")) == 7
    trace = trace_of([alloc(0, MiB, frames=BUILD)])
    assert findings_html(trace, trace.devices[0], "key/0") == ""


def test_a_finding_lights_its_allocations_in_the_timeline():
    trace = _seven_leaks()
    device = trace.devices[0]
    first = elements(findings_html(trace, device, "key/0"), "li")[0]
    assert first["data-light-by"] == "finding"
    rows = lit_rows(trace, device, "finding", first["data-light-group"])
    assert rows.tolist() == findings(trace, device)[0].rows.tolist()
    with pytest.raises(UsageError, match="no finding 'leak-9'"):
        lit_rows(trace, device, "finding", "leak-9")
