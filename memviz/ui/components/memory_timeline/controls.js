// @ts-check
// The controls beside the legend: how the stack is ordered, what the colours mean, what the axis counts, what
// a drag does, and the zoom.
import { button, el } from "../base.js";
import { ZOOM } from "./viewport.js";

/** @typedef {import("./timeline.js").MemoryTimeline} MemoryTimeline */
/** @typedef {import("./viewport.js").Axis} Axis */

export class Controls {
  /** @param {MemoryTimeline} timeline */
  constructor(timeline) {
    this.order = choice("Stack", [["category", "by colour"], ["age", "by age"]], (order) => timeline.setOrder(order));
    this.meaning = choice("Colour", [["category", "category"], ["site", "site"], ["module", "module"], ["size", "size"]], (meaning) => timeline.setMeaning(meaning));
    this.event = el("button", { type: "button", "aria-pressed": "true", onclick: () => timeline.setAxis("event") }, "Event");
    this.time = el("button", { type: "button", "aria-pressed": "false", onclick: () => timeline.setAxis("time") }, "Time");
    const axis = el("div", { class: "mvt-switch", role: "group", "aria-label": "Axis" }, this.event, this.time);
    const zooms = el("div", { class: "mvt-zooms" },
      button("−", "Zoom out (−)", () => timeline.moves.zoom(timeline.moves.middle(), ZOOM, true)),
      button("+", "Zoom in (+)", () => timeline.moves.zoom(timeline.moves.middle(), 1 / ZOOM, true)),
      button("All", "Show all (0)", () => timeline.moves.showAll(true)));
    this.node = el("div", { class: "mvt-controls" }, this.order.label, this.meaning.label, axis, timeline.tools.node, zooms);
  }

  /** @param {boolean} hasTimes */
  allowTime(hasTimes) {
    this.time.disabled = !hasTimes;
    this.time.title = hasTimes ? "" : "This trace has no times";
  }

  /** @param {Axis} axis */
  showAxis(axis) {
    this.event.setAttribute("aria-pressed", String(axis === "event"));
    this.time.setAttribute("aria-pressed", String(axis === "time"));
  }
}

/** @param {string} name @param {[value: string, text: string][]} options @param {(value: string) => void} change */
function choice(name, options, change) {
  const select = el("select", { "aria-label": name, onchange: () => change(select.value) }, ...options.map(([value, text]) => el("option", { value }, text)));
  return { select, label: el("label", { class: "mvt-choice" }, `${name} `, select) };
}
