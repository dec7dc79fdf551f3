// @ts-check
// The controls beside the legend: how the stack is ordered, what the colours mean, what the axis counts, what
// a drag does, and the zoom.
import { button, el, switchOf } from "../base.js";
import { ZOOM } from "./viewport.js";

/** @typedef {import("./timeline.js").MemoryTimeline} MemoryTimeline */

export class Controls {
  /** @param {MemoryTimeline} timeline */
  constructor(timeline) {
    this.order = choice("Stack", [["category", "by colour"], ["age", "by age"]], (order) => {
      timeline.order = order;
      timeline.choosing.changed();
    });
    this.meaning = choice("Colour", [["category", "category"], ["site", "site"], ["module", "module"], ["size", "size"]], (meaning) => timeline.setMeaning(meaning));
    this.axes = switchOf("Axis", { event: "Event", time: "Time" }, (axis) => timeline.setAxis(axis));
    const zooms = el("div", { class: "mvt-zooms" },
      button("−", "Zoom out (−)", () => timeline.moves.zoom(timeline.moves.middle(), ZOOM, true)),
      button("+", "Zoom in (+)", () => timeline.moves.zoom(timeline.moves.middle(), 1 / ZOOM, true)),
      button("All", "Show all (0)", () => timeline.moves.showAll(true)));
    this.node = el("div", { class: "mvt-controls" }, this.order.label, this.meaning.label, this.axes.node, timeline.tools.choice.node, zooms);
  }
}

/** @param {string} name @param {[value: string, text: string][]} options @param {(value: string) => void} change */
function choice(name, options, change) {
  const select = el("select", { "aria-label": name, onchange: () => change(select.value) }, ...options.map(([value, text]) => el("option", { value }, text)));
  return { select, label: el("label", { class: "mvt-choice" }, `${name} `, select) };
}
