"""What a page asks for while it opens."""

from __future__ import annotations

from typing import Any

SCRIPTS = """
() => {
  const links = [...document.querySelectorAll("link[rel=modulepreload][href^='./assets/']")];
  const named = links.map(({ href }) => href);
  const loaded = performance.getEntriesByType("resource").map(({ name }) => name);
  return { named, unnamed: loaded.filter((name) => /[/]assets[/].*[.]js$/.test(name) && !named.includes(name)) };
}
"""


def test_no_script_of_gradios_is_heard_of_late(page: Any, server: str) -> None:
    page.goto(server)
    page.wait_for_selector(".mv-sample")
    found = page.evaluate(SCRIPTS)
    assert len(found["named"]) > 20
    assert found["unnamed"] == []
