// @ts-check
// What a LitPanel does in the browser; `__init__.py` beside this file says which attributes it looks for.
import { all, nearest, onSaid, saveFile, say } from "../base.js";
import { KeptRow, mount as mountPanel } from "../panel.js";

/** @import { Gradio } from "../base.js" */
/** @import { Light } from "../memory_timeline/data.js" */

const ROW = ":is(tr, li)[data-light-by]";
const BOX = ".mv-icicle button";

// -- one memory for all panels of the page: what is kept lit, and what the timeline has said last

/** @type {LitPanel[]} */ const panels = [];
const kept = new KeptRow(ROW, "mv-kept", ({ lightBy: by, lightGroup: group }) => ({ by, group }));
const memory = {
  /** @type {{ pin?: number, range?: [number, number] | null }} */
  chosen: {},
  /** What was lit last while nothing was pointed at. */
  rested: "null",
  trace: "",
};

const isSeen = () => panels.some(({ element }) => element.offsetParent);

/** What is lit while nothing is pointed at. */
function resting() {
  const node = /** @type {HTMLElement | null} */ (document.querySelector("[data-light-rest]"));
  return kept.light || (node && { by: node.dataset.lightRest, group: node.dataset.lightRestGroup });
}

function rest() {
  memory.rested = JSON.stringify(resting());
  say("memviz:light", resting());
}

/** @param {Light | null} light */
function keep(light) {
  kept.light = light;
  tellKept();
  for (const { element } of panels) kept.mark(element);
  rest();
}

/** For the timeline's chip: what is kept, in words. */
function tellKept() {
  const row = panels.flatMap(({ element }) => all(ROW, element)).find((each) => kept.isKept(each));
  say("memviz:kept", kept.light && { ...kept.light, words: row?.querySelector("[data-keep]")?.textContent || kept.light.group });
}

/** One thing at a time, as with the timeline in focus: the pin, then the kept row.
 * @param {KeyboardEvent} event */
function escape(event) {
  if (event.key !== "Escape" || !isSeen() || nearest(event, "input, textarea, dialog")) return;
  const { pin = -1, range } = memory.chosen;
  const onPlot = nearest(event, ".mvt-plot");
  if (pin >= 0 && !onPlot) say("memviz:go", { pin });
  else if (kept.light && pin < 0 && !(onPlot && range)) keep(null);
}

// When nothing is pointed at any more, what is kept comes back in place of nothing.
window.addEventListener("memviz:light", (event) => {
  if (/** @type {CustomEvent} */ (event).detail || !resting() || !isSeen()) return;
  event.stopImmediatePropagation();
  say("memviz:light", resting());
}, true);
onSaid("memviz:state", (state) => (memory.chosen = state));
onSaid("memviz:unkeep", () => keep(null));
document.addEventListener("keydown", escape);

// -- one panel

class LitPanel {
  /** @param {HTMLElement} element @param {Gradio} gradio */
  constructor(element, { server }) {
    this.element = element;
    this.server = server;
    /** The focus follows into what was zoomed with a key. */
    this.isFocusWanted = false;
    /** The trace of which all findings are shown: they stay so when their estimates arrive. */
    this.unfolded = "";
    element.addEventListener("toggle", ({ target }) => target instanceof HTMLDetailsElement && (this.unfolded = (target.open && this.traceShown()) || ""), true);
    element.addEventListener("keydown", (event) => this.key(event));
    element.addEventListener("click", (event) => this.click(event));
  }

  /** @param {MouseEvent} event */
  click(event) {
    const button = nearest(event, "[data-csv]");
    if (button) return void this.save(button);
    // A click without a pointer came from the keyboard.
    this.isFocusWanted = event.detail === 0 && Boolean(nearest(event, '[data-act="zoom"]'));
    // What else a row offers lights nothing.
    const row = nearest(event, `${ROW} :is([data-act], .mv-whole)`) ? null : nearest(event, ROW);
    if (row) keep(kept.isKept(row) ? null : kept.lightOf(row));
  }

  /** @param {HTMLElement} button */
  async save({ dataset }) {
    const text = await this.server.table_csv({ ...dataset });
    saveFile(new Blob([text], { type: "text/csv" }), dataset.name || "table.csv");
  }

  traceShown() {
    return /** @type {HTMLElement | null} */ (this.element.querySelector("[data-trace]"))?.dataset.trace;
  }

  /** After each update the rows may be others, even of another trace. */
  redrawn() {
    const trace = this.traceShown();
    if (trace !== undefined && trace !== memory.trace) {
      memory.trace = trace;
      kept.light = null;
    }
    const fold = this.element.querySelector(".mv-fold details");
    if (fold instanceof HTMLDetailsElement) fold.open = trace === this.unfolded;
    // Grouped otherwise, nobody would see what is kept.
    const shown = new Set(all(ROW).map((row) => row.dataset.lightBy));
    if (shown.size && !shown.has(kept.light?.by)) kept.light = null;
    tellKept();
    kept.mark(this.element);
    // Boxes of the flame whose frames hold all words that are looked for.
    const sought = /** @type {HTMLElement | null} */ (document.querySelector("[data-light-rest=find]"))?.dataset.lightRestGroup || "";
    const words = sought.toLowerCase().split(/\s+/).filter((word) => word && !/^[<>]/.test(word));
    for (const box of all(BOX)) box.classList.toggle("mv-hit", words.length > 0 && words.every((word) => box.title.toLowerCase().includes(word)));
    if (this.isFocusWanted) all(BOX, this.element)[0]?.focus();
    this.isFocusWanted = false;
    if (JSON.stringify(resting()) !== memory.rested) rest();
  }

  // -- the icicle

  /** @param {KeyboardEvent} event */
  key(event) {
    const here = /^Arrow/.test(event.key) ? nearest(event, BOX) : null;
    const boxes = all(BOX, this.element);
    const next = here && neighbour(here, boxes, event.key);
    if (!next) return;
    event.preventDefault();
    for (const box of boxes) box.tabIndex = box === next ? 0 : -1;
    next.focus();
  }
}

/** The nearest box in a direction: the row above or below under the same place, or the next one in the row.
 * @param {HTMLElement} box @param {HTMLElement[]} boxes @param {string} key */
function neighbour(box, boxes, key) {
  const here = box.getBoundingClientRect();
  /** @type {[HTMLElement, DOMRect][]} */
  const others = boxes.filter((other) => other !== box).map((other) => [other, other.getBoundingClientRect()]);
  if (key === "ArrowUp" || key === "ArrowDown") {
    const isDown = key === "ArrowDown";
    const next = others.filter(([, other]) => Math.abs(other.top - here.top - (isDown ? here.height + 1 : -here.height - 1)) < 4);
    const inside = next.find(([, other]) => (isDown ? other.left > here.left - 1 && other.left < here.right : other.left < here.left + 1 && other.right > here.left));
    return inside?.[0];
  }
  const row = others.filter(([, other]) => Math.abs(other.top - here.top) < 4);
  return key === "ArrowRight" ? row.find(([, other]) => other.left > here.left)?.[0] : row.filter(([, other]) => other.left < here.left).pop()?.[0];
}

/** @param {HTMLElement} element @param {Gradio} gradio */
export function mount(element, gradio) {
  mountPanel(element, gradio);
  const panel = new LitPanel(element, gradio);
  panels.push(panel);
  gradio.watch("value", () => panel.redrawn());
}
