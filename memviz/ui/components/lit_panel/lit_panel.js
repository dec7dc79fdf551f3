// What a LitPanel does in the browser. This is the body of a function with Gradio's element, server and watch;
// `__init__.py` beside this file says which attributes it looks for.
const say = (detail) => window.dispatchEvent(new CustomEvent("memviz:light", { detail }));

// One memory for all panels of the page: what is kept lit, and what the timeline has said last.
const memory = (window.memvizLitPanels ??= (() => {
  const made = { kept: null, chosen: {}, panels: [], rested: "null", trace: "" };
  const isSeen = () => made.panels.some((panel) => panel.element.offsetParent);
  const searched = () => {
    const node = document.querySelector("[data-light-rest]");
    return node ? { by: node.dataset.lightRest, group: node.dataset.lightRestGroup } : null;
  };
  made.resting = () => made.kept || searched();
  made.keep = (light) => {
    made.kept = light;
    made.rested = JSON.stringify(made.resting());
    for (const panel of made.panels) panel.mark();
    say(made.resting());
  };
  // When nothing is pointed at any more, what is kept comes back in place of nothing.
  window.addEventListener("memviz:light", (event) => {
    if (event.detail || !made.resting() || !isSeen()) return;
    event.stopImmediatePropagation();
    say(made.resting());
  }, true);
  window.addEventListener("memviz:state", ({ detail }) => (made.chosen = detail));
  // One thing at a time, as with the timeline in focus: the pin, then the kept row.
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !isSeen() || event.target.closest?.("input, textarea, dialog")) return;
    const isPinned = made.chosen.pin >= 0;
    const onPlot = event.target.closest?.(".mvt-plot");
    if (isPinned && !onPlot) window.dispatchEvent(new CustomEvent("memviz:go", { detail: { pin: made.chosen.pin } }));
    else if (made.kept && !isPinned && !(onPlot && made.chosen.range)) made.keep(null);
  });
  return made;
})());

const lightOf = (row) => ({ by: row.dataset.lightBy, group: row.dataset.lightGroup });
const isKept = (row) => memory.kept?.by === row.dataset.lightBy && memory.kept?.group === row.dataset.lightGroup;

const mark = () => {
  for (const row of element.querySelectorAll("tr[data-light-by]")) {
    row.classList.toggle("mv-kept", isKept(row));
    row.querySelector("[data-keep]")?.setAttribute("aria-pressed", String(isKept(row)));
  }
};
memory.panels.push({ element, mark });

// -- the icicle

const nodes = () => [...element.querySelectorAll(".mv-icicle button")];
const stand = (node) => {
  for (const each of nodes()) each.tabIndex = each === node ? 0 : -1;
  node.focus();
};

/** The nearest box in a direction: the row above or below under the same place, or the next one in the row. */
function neighbour(node, key) {
  const here = node.getBoundingClientRect();
  const others = nodes().filter((each) => each !== node).map((each) => [each, each.getBoundingClientRect()]);
  if (key === "ArrowUp" || key === "ArrowDown") {
    const down = key === "ArrowDown";
    const next = others.filter(([, box]) => Math.abs(box.top - here.top - (down ? here.height + 1 : -here.height - 1)) < 4);
    const inside = next.filter(([, box]) => (down ? box.left > here.left - 1 && box.left < here.right : box.left < here.left + 1 && box.right > here.left));
    return inside[0]?.[0];
  }
  const row = others.filter(([, box]) => Math.abs(box.top - here.top) < 4);
  return key === "ArrowRight" ? row.find(([, box]) => box.left > here.left)?.[0] : row.filter(([, box]) => box.left < here.left).pop()?.[0];
}

element.addEventListener("keydown", (event) => {
  if (!/^Arrow/.test(event.key) || !event.target.closest(".mv-icicle")) return;
  const next = neighbour(event.target, event.key);
  if (!next) return;
  event.preventDefault();
  stand(next);
});

// -- clicks

let focusTop = false;

async function save(button) {
  const text = await server.table_csv({ ...button.dataset });
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  link.download = button.dataset.name || "table.csv";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

element.addEventListener("click", (event) => {
  const button = event.target.closest("[data-csv]");
  if (button) return void save(button);
  // A click without a pointer came from the keyboard; its focus follows into what is zoomed.
  focusTop = event.detail === 0 && Boolean(event.target.closest('[data-act="zoom"]'));
  const row = event.target.closest("tr[data-light-by]");
  if (row) memory.keep(isKept(row) ? null : lightOf(row));
});

// -- after each update the rows may be others, even of another trace

watch("value", () => {
  const trace = element.querySelector("[data-trace]")?.dataset.trace;
  if (trace !== undefined && trace !== memory.trace) {
    memory.trace = trace;
    memory.kept = null;
  }
  // Grouped otherwise, nobody would see what is kept.
  const shown = new Set([...document.querySelectorAll("tr[data-light-by]")].map((row) => row.dataset.lightBy));
  if (shown.size && !shown.has(memory.kept?.by)) memory.kept = null;
  mark();
  if (focusTop) nodes()[0]?.focus();
  focusTop = false;
  const rest = JSON.stringify(memory.resting());
  if (rest === memory.rested) return;
  memory.rested = rest;
  say(memory.resting());
});
