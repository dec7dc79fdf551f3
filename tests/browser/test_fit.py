"""Search for a configuration that fits a user's model: paste, drop, search, inspect, cancel."""

import json
import re
from pathlib import Path
from typing import Any

from tests.browser.conftest import expect, reload
from tests.browser.test_run import choose_model, field, press, row, verdict
from tests.ui.run.test_form import TINY as TINY_LLAMA

TINY = TINY_LLAMA | {"max_position_embeddings": 4096}


def own_model(tab: Any) -> Any:
    field(tab, "workload").select_option("config.json")
    area = tab.locator("textarea[name='config']")
    expect(area).to_be_visible()
    return area


DROP = """(node, text) => {
  const held = new DataTransfer();
  held.items.add(new File([text], "config.json", { type: "application/json" }));
  node.dispatchEvent(new DragEvent("drop", { dataTransfer: held, bubbles: true, cancelable: true }));
}"""


def test_a_configuration_is_chosen_as_a_file_or_dropped_on_its_field_and_run(tab: Any, tmp_path: Path) -> None:
    area = own_model(tab)
    fault = tab.locator("#run-form [data-fault='config']")
    expect(fault).to_contain_text("Paste a config.json here")
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**TINY, "auto_map": {"AutoModel": "own.Model"}}))
    tab.locator("[data-reads='config']").set_input_files(str(path))
    expect(fault).to_contain_text("auto_map names custom code, which memviz does not run")
    area.evaluate(DROP, json.dumps(TINY))
    expect(area).to_have_value(json.dumps(TINY))
    expect(fault).to_be_empty()
    field(tab, "w:sequence").fill("64")
    field(tab, "w:mode").select_option("lora")
    expect(row(tab, 0)).to_contain_text("fits")
    expect(tab.locator("#run-results")).to_contain_text("LlamaForCausalLM of config.json")
    expect(tab.locator("#run-results")).to_contain_text("training step of LoRA")
    expect(verdict(tab)).to_contain_text("reserves")


def search(tab: Any, **fields: str) -> None:
    tab.locator("#run-form .mv-more").first.evaluate("(each) => (each.open = true)")
    for name, value in fields.items():
        field(tab, f"fit:{name}").select_option(value)
    field(tab, "fit:grid").check()
    press(tab, "Find a configuration that fits")


def test_the_way_that_fits_is_found_and_each_point_leads_to_its_code_and_its_timeline(tab: Any) -> None:
    choose_model(tab, "feed_forward", "activation")
    tab.locator("#run-form .mv-more").first.evaluate("(each) => (each.open = true)")
    for name, text in (("sequence", "460000"), ("dim", "1024"), ("layers", "1"), ("batch", "1")):
        field(tab, f"w:{name}").fill(text)
    field(tab, "card").select_option("Tesla T4")
    search(tab, largest="batch")
    points = tab.locator("#run-fit .mv-point")
    expect(points.first).to_be_visible()
    front = tab.locator("#run-fit .mv-fit-front").first
    expect(front).to_be_visible()
    expect(verdict(tab)).to_contain_text(re.compile(r"It fits with .*: [\d.]+ GiB reserved\. Outputs are unchanged"))
    expect(verdict(tab)).to_contain_text("The largest batch that fits is 1; 2 does not fit.")
    # The front is complete then.
    # It may lie under another.
    tab.locator("#run-fit .mv-on-front.mv-fits[title*='Split feed-forward']").first.dispatch_event("click")
    expect(tab.locator("#run-fit .mv-fit-way")).to_contain_text("Split feed-forward")
    assert tab.locator("#run-fit .mv-point:not(.mv-fits)").count() >= 1
    expect(tab.locator("#run-fit .mv-fit-card")).to_contain_text("the card: 14.49 GiB")
    # The best is a normal answer too: its row and timeline beside those of the baseline.
    expect(row(tab, 0)).to_contain_text("does not fit")
    expect(row(tab, 1)).to_contain_text("Split feed-forward")
    expect(tab.locator("#run-B")).to_contain_text("Split feed-forw")
    expect(tab.locator("#run-fit .mv-fit-map tbody tr")).to_have_count(5)
    expect(tab.locator("#run-fit .mv-take-away")).to_contain_text("split_feed_forward")
    # Its point may lie under another; the list of all ways has it too.
    tab.locator("#run-fit .mv-fit-all summary").click()
    tab.locator("#run-fit .mv-fit-all [data-number='0']").click()
    expect(tab.locator("#run-fit .mv-fit-way")).to_contain_text("Baseline ✗ does not fit")
    expect(tab.locator("#run-fit .mv-take-away")).not_to_contain_text("split_feed_forward")
    tab.get_by_role("button", name="Open its timeline").click()
    expect(tab.locator("#traces")).to_contain_text("Baseline")
    expect(tab.locator("#verdict h1")).to_contain_text("The peak is")


def test_a_search_can_be_cancelled_and_shows_what_it_found_until_then(tab: Any) -> None:
    choose_model(tab, "gpt2", "dropout")
    field(tab, "w:sequence").fill("256")
    tab.locator("#run-form .mv-more").first.evaluate("(each) => (each.open = true)")
    field(tab, "w:layers").fill("2")
    search(tab)
    expect(tab.locator("#run-fit .mv-point").first).to_be_visible()
    tab.get_by_role("button", name="Cancel").click()
    expect(tab.get_by_role("button", name="Cancel")).to_have_count(0)
    expect(row(tab, 0)).to_contain_text("fits")
    expect(verdict(tab)).to_contain_text(re.compile(r"Cancelled\. \d+ of \d+ configurations were tried"))
    expect(tab.locator("#run-fit .mv-fit-front").first).to_be_visible()
    expect(tab.locator("#run-fit .mv-point").first).to_be_visible()
    tab.wait_for_function("location.search.includes('fit=1')")
    reload(tab)
    expect(verdict(tab)).to_contain_text("configurations were tried")
    expect(field(tab, "w:layers")).to_have_value("2")
