// @ts-check
// The controls beside the legend: what the colours mean, the zoom, and a menu of tools: how the stack is ordered, what
// the axis counts, what a drag does.
import { button, el, switchOf } from "../base.js";
import { ZOOM } from "./viewport.js";

/** @typedef {import("./timeline.js").MemoryTimeline} MemoryTimeline */

export class Controls {
  /** @param {MemoryTimeline} timeline */
  constructor(timeline) {
    this.timeline = timeline;
    this.order = choice("Stack", [["category", "by colour"], ["age", "by age"]], (order) => {
      timeline.order = order;
      timeline.choosing.changed();
    });
    this.meaning = choice("Colour", [["category", "category"], ["site", "site"], ["module", "module"], ["size", "size"]], (meaning) => timeline.setMeaning(meaning));
    this.axes = switchOf("Axis", { event: "Event", time: "Time" }, (axis) => timeline.setAxis(axis));
    this.all = button("All", "Show all (0)", () => timeline.moves.showAll(true));
    const zooms = el("div", { class: "mvt-zooms" },
      button("−", "Zoom out (−)", () => timeline.moves.zoom(timeline.moves.middle(), ZOOM, true)),
      button("+", "Zoom in (+)", () => timeline.moves.zoom(timeline.moves.middle(), 1 / ZOOM, true)),
      this.all);
    // What few people change, each with the key that does the same.
    const rows = [["Axis", "T", this.axes.node], ["Drag", "B M", timeline.tools.choice.node]].map(([name, keys, node]) => el("div", { class: "mvt-tool" }, el("span", {}, `${name} `, el("kbd", {}, keys)), node));
    const menu = el("details", { class: "mv-menu mvt-tools" }, el("summary", {}, "Tools"), el("div", {}, this.order.label, ...rows));
    this.node = el("div", { class: "mvt-controls" }, this.meaning.label, zooms, menu);
  }

  draw() {
    const { viewport } = this.timeline;
    const { first, last } = viewport.whole();
    this.all.hidden = viewport.isFullHeight() && viewport.first <= first && viewport.last >= last;
  }
}

/** @param {string} name @param {[value: string, text: string][]} options @param {(value: string) => void} change */
function choice(name, options, change) {
  const select = el("select", { "aria-label": name, onchange: () => change(select.value) }, ...options.map(([value, text]) => el("option", { value }, text)));
  return { select, label: el("label", { class: "mvt-choice" }, el("span", {}, `${name} `), select) };
}
