"""Every table of the page and of saved pages is sorted as its header claims."""

from pathlib import Path
from typing import Any

from memviz.trace.load import load_trace
from memviz.ui.saved.report import report_page
from tests.browser.conftest import at_home, expect
from tests.ranks.files import written
from tests.traces import MiB, pairs_of

SHARES_A_PAGE = True

FALSE_HEADS = """() => {
  const arrows = { ascending: ["↑"], descending: ["↓"], other: ["↓", "↑"] };
  const heads = [...document.querySelectorAll("table thead")].filter((head) => head.getClientRects().length);
  // Figures by every digit, which stand in titles; what makes no row by itself, as "everything else", stays at the end.
  const exact = (cell) => cell.querySelector("[title]")?.title.match(/^[+−-]?[\\d,]+ B/)?.[0] || cell.textContent;
  const number = (cell) => Number(exact(cell).replace("−", "-").replace(/[^\\d.-]/g, ""));
  const words = (cell) => {
    const name = cell.querySelector(".mv-name, .mv-rowname .mv-code, .mv-rowname span");
    if (name) return name.textContent.toLowerCase();
    const copy = cell.cloneNode(true);
    for (const soft of copy.querySelectorAll(".mv-soft")) soft.remove();
    return copy.textContent.trim().toLowerCase();
  };
  const rows = (table) => {
    const all = [...table.tBodies[0].rows];
    const named = all.filter((row) => row.matches("[data-light-by], [data-compare-row]"));
    return named.length ? named : all;
  };
  const wrong = [];
  for (const head of heads) {
    const cells = [...head.rows[0].cells];
    const table = head.parentElement;
    cells.forEach((cell, column) => {
      const order = cell.getAttribute("aria-sort"), arrow = cell.textContent.match(/[↑↓▲▼]/)?.[0];
      const say = (what) => wrong.push(`${table.className}, ${cell.textContent}: ${what}`);
      if (!order && !arrow) return;
      if (!order || !arrow) return say(`arrow ${arrow}, aria-sort ${order}`);
      if (!arrows[order]?.includes(arrow)) say(`arrow ${arrow}, aria-sort ${order}`);
      const value = cell.classList.contains("mv-number") ? number : words;
      let shown = rows(table).map((row) => value(row.cells[column]));
      if (order === "other") shown = shown.map(Math.abs);
      const sign = arrow === "↑" ? 1 : -1;
      const against = (one, other) => (one < other ? -1 : one > other ? 1 : 0);
      if (shown.some((one, i) => i && against(one, shown[i - 1]) * sign < 0)) say(shown.join(" "));
    });
    if (cells.filter((cell) => cell.hasAttribute("aria-sort")).length > 1) wrong.push(`${table.className}: two orders`);
  }
  return wrong;
}"""
SORTED = """([panel, value, before]) => {
  const button = document.querySelector(`${panel} thead [data-act=sort][data-value=${value}]`);
  const order = button?.closest("th")?.getAttribute("aria-sort");
  return order && order !== before;
}"""


def expect_true_heads(page: Any, panel: str) -> None:
    expect(page.locator(f"{panel} table").first).to_be_visible()
    assert page.evaluate(FALSE_HEADS) == []


def sort_by_every_head(page: Any, panel: str, *, turns: bool) -> None:
    """Press each head twice; with `turns`, the second press reverses the order."""
    expect_true_heads(page, panel)
    buttons = page.locator(f"{panel} thead [data-act=sort]")
    values = buttons.evaluate_all("(all) => all.map((each) => each.dataset.value)")
    assert len(values) > 2
    for value in values * (2 if turns else 1):
        head = page.locator(f"{panel} thead th").filter(has=page.locator(f"[data-value={value}]"))
        before = head.get_attribute("aria-sort")
        head.get_by_role("button").click()
        page.wait_for_function(SORTED, arg=[panel, value, before if turns else None])
        expect_true_heads(page, panel)


def shows(page: Any, panel: str, value: str) -> None:
    """Another grouping of a table."""
    button = page.locator(f"{panel} [data-act=by][data-value={value}]")
    button.click()
    expect(button).to_have_attribute("aria-pressed", "true")


def test_in_explore_and_compare(page: Any, server: str) -> None:
    at_home(page, server)
    page.locator("[data-sample=checkpointing]").click()
    page.locator("#differences table").wait_for()
    for grouping in ("site", "stack", "module", "category"):
        shows(page, "#differences", grouping)
        sort_by_every_head(page, "#differences", turns=False)
    page.get_by_role("tab", name="Explore").click()
    page.locator("#live-set table").wait_for()
    for grouping in ("category", "module", "site"):
        shows(page, "#lower-head", grouping)
        sort_by_every_head(page, "#live-set", turns=grouping == "category")
    page.get_by_role("tab", name="Never freed").click()
    page.locator("#live-set").get_by_text("alive at the end").wait_for()
    expect_true_heads(page, "#live-set")


def test_in_what_if(page: Any, server: str) -> None:
    at_home(page, server)
    page.locator("[data-sample=out-of-memory]").click()
    page.locator("#what-if-table tbody tr").nth(5).wait_for()
    expect_true_heads(page, "#what-if-table")
    page.locator("#what-if-form [name=memory]").fill("")
    page.locator("#what-if-table").get_by_text("Without limit").wait_for()
    expect_true_heads(page, "#what-if-table")


def test_in_a_saved_report(page: Any, tmp_path: Path) -> None:
    path = tmp_path / "saved.html"
    path.write_text(report_page(pairs_of(load_trace(written(tmp_path, "run.pickle", more=16 * MiB)))), encoding="utf-8")
    page.goto(path.as_uri())
    page.wait_for_function("document.body.dataset.saved === 'ready'")
    for grouping in ("category", "site"):
        page.locator(f'#lower-head [data-value="{grouping}"]').click()
        sort_by_every_head(page, "#live-set", turns=True)
