from __future__ import annotations

import pytest

from memviz.analysis.findings.finding import FindingKind
from memviz.analysis.findings.ranking import findings
from memviz.errors import UsageError
from memviz.ui.explore.findings import findings_html
from memviz.ui.payloads.timelines import lit_rows
from tests.analysis.training import BUILD, Loop
from tests.facts import missing
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


def test_two_are_seen_the_others_folded_and_in_a_saved_page_none_leads_anywhere():
    trace = _seven_leaks()
    html = findings_html(trace, trace.devices[0], "key/0")
    seen, folded = html.split('<li class="mv-fold">')
    assert [len(elements(part, "li", data_light_by="finding")) for part in (seen, folded)] == [2, 5]
    assert words(folded).startswith("5 more findings 18.0 MiB growth from step to step")
    chip = seen.partition("</button>")[0]
    assert words(chip) == "Findings 22.0 MiB growth from step to step", "the rest shows after a click"
    assert missing(words(seen), "list.py:7", "11.0 MiB") == []
    trace = _seven_leaks()
    html = findings_html(trace, trace.devices[0])
    assert not elements(html, "button")
    assert "data-light-by" not in html
    assert len(elements(html, "li")) == 7
    trace = trace_of([alloc(0, MiB, frames=BUILD)])
    assert findings_html(trace, trace.devices[0], "key/0") == ""


def test_every_kind_of_finding_has_a_few_words_for_its_chip():
    assert max(len(kind.title_text.split()) for kind in FindingKind) <= 5


def test_a_finding_lights_its_allocations_in_the_timeline():
    trace = _seven_leaks()
    device = trace.devices[0]
    first = elements(findings_html(trace, device, "key/0"), "li")[0]
    assert first["data-light-by"] == "finding"
    rows = lit_rows(trace, device, "finding", first["data-light-group"])
    assert rows.tolist() == findings(trace, device)[0].rows.tolist()
    with pytest.raises(UsageError, match="no finding 'leak-9'"):
        lit_rows(trace, device, "finding", "leak-9")
