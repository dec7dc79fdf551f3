"""The Run tab: variants, their cost, output checks and failures, and the search for a configuration that fits."""

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.browser.conftest import expect, new_visitor, opened, page_of, reload
from tests.ui.run.test_form import TINY as TINY_LLAMA

SMALL = {"sequence": "256", "layers": "2"}
"""Settings of the feed-forward stack that run in a fraction of a second."""


def field(page: Any, name: str) -> Any:
    return page.locator(f"#run-form [name='{name}']")


def fill(page: Any, **texts: str) -> None:
    page.locator("#run-form .mv-more").first.evaluate("(each) => (each.open = true)")
    for name, text in texts.items():
        field(page, f"w:{name}").fill(text)


def small(page: Any) -> None:
    """Choose a model that is predicted in a fraction of a second."""
    choose_model(page, "feed_forward", "activation")
    fill(page, **SMALL)


def choose_model(page: Any, name: str, knob: str) -> None:
    """Wait for a field that only this model has, or that it has with another value."""
    field(page, "workload").select_option(name)
    expect(field(page, "workload")).to_have_value(name)
    expect(field(page, f"w:{knob}")).to_have_count(1)


def row(page: Any, number: int) -> Any:
    return page.locator("#run-results .mv-variant").nth(number)


def verdict(page: Any) -> Any:
    return page.locator("#run-head h1")


def press(page: Any, words: str | re.Pattern[str]) -> None:
    page.locator("#run-form").get_by_role("button", name=words).click()


def switch(page: Any, name: str) -> Any:
    return field(page, f"o:{name}")


def done(page: Any, count: int) -> None:
    expect(page.locator("#run-results :is(.mv-is-done, .mv-is-failed)")).to_have_count(count)
    expect(page.locator("#run-progress button")).to_have_count(0)


def workers(server: Any) -> list[int]:
    """Return the run processes that this page has started, each in its own session."""
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        try:
            _, parent, _, session = (each / "stat").read_text().rpartition(")")[2].split()[:4]
            if (int(parent), session) == (server.pid, each.name):
                found.append(int(each.name))
        except OSError:
            continue
    return found


def test_a_switch_answers_by_itself_with_timelines_prices_and_an_output_check(tab: Any) -> None:
    choose_model(tab, "ltx_video", "frames")
    assert field(tab, "w:mode").input_value() == "training"
    field(tab, "optimizer").select_option("none")
    field(tab, "card").select_option("NVIDIA GeForce RTX 4090")
    # A quarter of the blocks, for nearly five times as many tokens: more memory in a quarter of the time.
    fill(tab, layers="7", frames="561")
    expect(row(tab, 0)).to_contain_text("does not fit")
    expect(tab.locator(".mv-does-not-fit")).to_have_count(1)
    switch(tab, "checkpointing").check()
    expect(row(tab, 1)).to_contain_text("✓ fits")
    expect(verdict(tab)).to_contain_text(re.compile(r"Gradient checkpointing makes the step fit, with no optimizer\."))
    expect(row(tab, 1)).to_contain_text("bitwise equal")
    expect(tab.locator(".mv-differences li")).not_to_have_count(0)
    # What it saves is the same number in its price and in the table.
    price = tab.locator("[data-part='price:checkpointing'] b")
    expect(row(tab, 1).locator("td").first).to_contain_text(price.inner_text())
    expect(tab.locator("[data-part='price:activation_offload'] b")).to_contain_text("MiB")
    expect(tab.locator(".mv-take-away")).to_contain_text("Checkpointing().apply(model)")
    line = "python -m memviz run ltx_video --set frames=561 --set layers=7 --with"
    expect(tab.locator(".mv-take-away")).to_contain_text(line)
    drawn = "[...document.querySelectorAll('#run-A *, #run-B *')].filter((each) => each.memviz?.data)"
    tab.wait_for_function(f"{drawn}.length === 2")
    tab.locator("#run-A .mvt-plot").focus()
    tab.keyboard.press("+")
    tab.wait_for_function(f"{drawn}.filter((each) => each.memviz.viewport.first > 0).length === 2")
    with tab.expect_download() as download:
        tab.locator("summary", has_text="Share").click()
        tab.get_by_role("button", name="Picture (SVG)").click()
    picture = ElementTree.parse(download.value.path()).getroot()
    assert float(picture.get("width", 0)) > float(picture.get("height", 0)), "A and B are side by side"
    tab.get_by_role("button", name="Compare both").click()
    scores = tab.locator("#compare-top .mv-scores")
    expect(scores).to_contain_text("FLOP")
    expect(scores).to_contain_text("bitwise equal")
    expect(scores).not_to_contain_text("not in file")


@pytest.fixture
def one_tab(same_page: Any, runs: Any) -> Any:
    """A page for several stories, each of which but the last leaves no switch on and nothing pinned."""
    return same_page if same_page.url.startswith(runs.address) else opened(same_page, runs.address)


def test_the_last_change_wins_and_what_is_wrong_is_marked_where_it_is(one_tab: Any) -> None:
    tab = one_tab
    small(tab)
    facts = tab.locator("#run-results .mv-about-run")
    expect(facts).to_contain_text("2 layers of 4096 x 16384 gelu, 2 x 256 tokens")
    for sequence in ("512", "1024", "2048", "65536"):
        field(tab, "w:sequence").fill(sequence)
    expect(facts).to_contain_text("2 x 65536 tokens")
    done(tab, 1)
    field(tab, "w:sequence").fill("no number")
    expect(tab.locator("#run-form [data-fault='w:sequence']")).to_contain_text("not a whole number")
    field(tab, "w:sequence").fill("256")
    expect(facts).to_contain_text("2 x 256 tokens")
    reason = tab.locator("#run-form [data-fault='o:checkpointing']")
    expect(tab.locator("[data-part='price:checkpointing']")).to_have_text("training only")
    expect(switch(tab, "checkpointing")).to_be_hidden()
    tab.locator(".mv-idle").get_by_text("not usable").click()
    switch(tab, "checkpointing").check()
    expect(reason).to_have_text("It works in training only, but this is inference.")
    expect(tab.locator("#run-results .mv-variant")).to_have_count(1)
    switch(tab, "checkpointing").uncheck()
    expect(reason).to_be_empty()
    choose_model(tab, "ltx_video", "frames")
    field(tab, "w:frames").fill("80")
    expect(tab.locator("#run-form [data-fault='w:frames']")).to_contain_text("it must be 1 more than a multiple of 8")
    field(tab, "w:frames").fill("81")
    expect(tab.locator("#run-form [data-fault='w:frames']")).to_be_empty()


def test_what_runs_can_be_cancelled_and_run_again(one_tab: Any) -> None:
    tab = one_tab
    choose_model(tab, "ltx_video", "frames")
    fill(tab, layers="120")
    # Until its own run has begun, the button cancels that of before.
    tab.wait_for_function("location.search.includes('120')")
    tab.locator("#run-progress").get_by_role("button", name="Cancel").click()
    expect(row(tab, 0)).to_contain_text("cancelled")
    small(tab)
    expect(verdict(tab)).to_contain_text("This forward pass reserves")
    done(tab, 1)


def test_a_pinned_variant_stays_and_is_kept_for_its_visitor(one_tab: Any) -> None:
    tab = one_tab
    small(tab)
    switch(tab, "split_feed_forward").check()
    done(tab, 2)
    row(tab, 1).get_by_role("button", name="Pin").click()
    expect(row(tab, 1).get_by_role("button", name="Unpin")).to_be_visible()
    expect(tab.locator("#run-kept summary")).to_contain_text("Kept runs, 1")
    switch(tab, "split_feed_forward").uncheck()
    switch(tab, "allocator_settings").check()
    expect(row(tab, 2)).to_contain_text("Allocator settings")
    expect(row(tab, 1)).to_contain_text("Split feed-forward")
    row(tab, 1).get_by_role("button", name="Split feed-forward", exact=True).click()
    expect(tab.locator("#run-B .mvt-name")).to_contain_text("Split feed-forward")
    row(tab, 1).get_by_role("button", name="Unpin").click()
    expect(tab.locator("#run-results .mv-variant")).to_have_count(2)
    switch(tab, "allocator_settings").uncheck()


def test_many_variants_wait_for_a_button(one_tab: Any) -> None:
    tab = one_tab
    small(tab)
    field(tab, "w:activation").select_option("several …")
    boxes = tab.locator("#run-form fieldset.mv-several input")
    expect(boxes).to_have_count(6)
    assert [each.is_checked() for each in boxes.all()] == [True] * 6
    done(tab, 6)
    switch(tab, "split_feed_forward").check()
    press(tab, "Predict 12 variants")
    done(tab, 12)
    expect(row(tab, 11)).to_contain_text("linear-silu: Split feed-forward")
    expect(tab.locator("#run-results .mv-variant").filter(has_text="equal up to rounding")).to_have_count(6)
    expect(verdict(tab)).to_contain_text("glu: Split feed-forward saves")
    for each in boxes.all()[1:]:
        each.uncheck()
    done(tab, 2)
    boxes.first.uncheck()
    expect(tab.locator("#run-form select[name='w:activation']")).to_have_value("gelu")


def test_a_link_answers_in_another_browser_as_in_the_first(browser: Any, tab: Any, watched: Callable[..., Any]) -> None:
    small(tab)
    switch(tab, "split_feed_forward").check()
    done(tab, 2)
    expect(tab.locator("#run-legend")).to_contain_text("parameter")
    tab.wait_for_function("location.search.includes('split_feed_forward')")
    row(tab, 1).get_by_role("button", name="Pin").click()
    fill(tab, sequence="512")
    done(tab, 3)
    tab.wait_for_function("location.search.includes('pins') && location.search.includes('512')")
    other = watched(new_visitor(browser))
    other.goto(tab.url)
    expect(verdict(other)).to_have_text(verdict(tab).inner_text())
    expect(field(other, "w:sequence")).to_have_value("512")
    for number in range(3):
        figure = row(tab, number).locator("td b").first.inner_text()
        expect(row(other, number).locator("td b").first).to_have_text(figure)
    row(other, 1).get_by_role("button", name="Unpin").click()
    done(other, 2)
    # A page that is loaded again has its own answer, and no pin of before.
    other.wait_for_function("!location.search.includes('pins')")
    reload(other)
    done(other, 2)
    tab.get_by_role("tab", name="Explore").click()
    tab.wait_for_function("!location.search")


def test_a_run_that_is_killed_half_way_says_so_and_the_others_go_on(tab: Any, runs: Any) -> None:
    choose_model(tab, "gpt2", "dropout")
    # The first variant is long enough to be killed in time.
    fill(tab, sequence="256", layers="200, 1, 2")
    # A process that dies before it has begun is replaced, and so is the run of a form that has changed since.
    expect(tab.locator("#run-progress")).to_contain_text(re.compile("layers 200.*(warm-up|step|reading)"))
    for pid in workers(runs):
        os.kill(pid, signal.SIGKILL)
    expect(row(tab, 0)).to_contain_text("its process died")
    expect(row(tab, 0)).to_contain_text("SIGKILL")
    done(tab, 3)
    for number in (1, 2):
        expect(row(tab, number)).to_contain_text("fits")
    tab.get_by_role("tab", name="Explore").click()
    expect(tab.locator("#home")).to_be_visible()


def test_runs_are_kept_for_their_visitor_alone(browser: Any, tmp_path: Path, watched: Callable[..., Any]) -> None:
    context = new_visitor(browser)
    with page_of(tmp_path) as first:
        page = opened(watched(context), first.address)
        small(page)
        switch(page, "split_feed_forward").check()
        row(page, 1).get_by_role("button", name="Pin").click()
        expect(page.locator("#run-kept summary")).to_contain_text("Kept runs, 1")
        page.close()
    with page_of(tmp_path, first.port) as again:
        page = opened(watched(context), again.address)
        kept = page.locator("#run-kept")
        kept.get_by_text("Kept runs, 1").click()
        kept.locator("input").fill("my first run")
        kept.get_by_role("button", name="Rename").click()
        expect(kept.get_by_role("button", name="Delete my first run")).to_be_visible()
        kept.get_by_role("button", name="Open my first run").click()
        expect(page.locator("#traces")).to_contain_text("my first run")
        expect(page.locator("#verdict h1")).to_contain_text("The peak is")
        stranger = new_visitor(browser)
        other = opened(watched(stranger), again.address)
        expect(other.locator("#run-kept summary")).to_have_count(0)
        stranger.close()
        page.get_by_role("tab", name="Run").click()
        # By key, because content drawn above the button moves it away from the pointer.
        kept.get_by_role("button", name="Delete my first run").press("Enter")
        expect(kept.locator("tbody tr")).to_have_count(0)
        context.close()


def test_keys_alone_lead_from_a_card_to_its_published_table(tab: Any) -> None:
    story = tab.locator("#run-cards [data-story=flat-gradients]")
    story.focus()
    tab.keyboard.press("Enter")
    done(tab, 4)
    expect(row(tab, 3)).to_contain_text("Gradients flat")
    expect(switch(tab, "flat_gradients")).to_be_checked()
    tab.wait_for_function("location.search.includes('story')")
    # Loaded again the page is the same, by its link.
    reload(tab)
    done(tab, 4)
    tab.get_by_role("button", name="Compute it").press("Enter")
    expect(tab.locator("#run-table tbody tr")).to_have_count(10)
    expect(tab.locator("#run-table")).to_contain_text("17.400")


def test_the_list_can_be_sorted_by_what_is_saved(tab: Any) -> None:
    small(tab)
    done(tab, 1)
    # Prices come one after the other, and none is awaited yet where the answer is new.
    for name in ("layerwise_casting", "weight_offload"):
        expect(tab.locator(f"#run-form [data-part='price:{name}']")).to_contain_text("B")
    tab.get_by_role("button", name="by saving").click()
    expect(tab.get_by_role("button", name="by group")).to_be_visible()
    names = [each.get_attribute("name") for each in tab.locator("#run-form .mv-opt-head input").all()]
    assert names[0] != "o:checkpointing" and len(names) == 18
    # An answer to the form of before, which comes late, draws no other list.
    drawn = tab.evaluate(
        """() => {
          const host = [...document.querySelectorAll("#run-form, #run-form *")].find((each) => each.memviz);
          host.memviz.load({ version: "0", html: "<p>older</p>", faults: {}, parts: { idle: "late" } });
          return host.textContent;
        }"""
    )
    assert "by group" in drawn and "late" in drawn and "older" not in drawn


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
