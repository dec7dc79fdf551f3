// @ts-check
// What a drag on the plot does: it moves the view, chooses a range, zooms into a box or draws a ruler; the byte axis at the
// side, where a drag chooses the bytes that fill the height; and the controls beside the legend.
import { button, clamp, el, switchOf, whilePressed } from "../base.js";
import { Part, ZOOM } from "./viewport.js";

/** @import { MemoryTimeline } from "./timeline.js" */
/** @import { Sight } from "./viewport.js" */
/** @import { Point } from "../base.js" */

/** A box lower or narrower than this leaves that side of the view as it is. */
const LEAST_BOX = 6;
/** @type {Record<Tool, string>} */ const TOOLS = { move: "Move", box: "Box", ruler: "Ruler" };

/** @typedef {"move" | "box" | "ruler"} Tool */
/** What happens as a pointer moves, once it is let go, and if it never comes to that.
 * @typedef {{ move: (here: Point) => void, end?: () => void, cancel?: () => void }} Drag */

export class Tools extends Part {
  /** @type {Tool} */ tool = "move";
  box = el("div", { class: "mvt-box", hidden: "", "aria-hidden": "true" });
  bytesAxis = el("div", { class: "mvt-bytes", "aria-hidden": "true", title: "Drag or use the wheel to zoom; double-click shows all bytes" });
  eventsAxis = el("div", { class: "mvt-events", "aria-hidden": "true", title: "Click to select a moment" });
  fullHeight = button("↕ Full height", "Show the full height (0 shows all)", () => this.timeline.moves.showFullHeight(true));
  choice = switchOf("Drag on the plot", TOOLS, (tool) => this.take(tool));

  listen() {
    this.take("move");
    this.fullHeight.classList.add("mvt-full");
    this.fullHeight.hidden = true;
    this.bytesAxis.addEventListener("pointerdown", (event) => this.pressAxis(event));
    this.bytesAxis.addEventListener("dblclick", (event) => {
      event.stopPropagation();
      this.timeline.moves.showFullHeight(true);
    });
    for (const name of ["pointerdown", "dblclick", "keydown"]) this.fullHeight.addEventListener(name, (event) => event.stopPropagation());
  }

  /** What another one has drawn goes. @param {Tool} tool */
  take(tool) {
    this.tool = tool;
    this.timeline.ruler.end();
    this.choice.show(tool);
    this.timeline.root.dataset.tool = tool;
  }

  /** Back to moving. @returns {boolean} whether there was anything to end */
  end() {
    const had = this.timeline.ruler.end() || this.tool !== "move";
    if (had) this.take("move");
    return had;
  }

  draw() {
    this.fullHeight.hidden = this.viewport.isFullHeight();
    // Small ones have no room for words.
    this.fullHeight.textContent = this.timeline.value?.linked ? "↕" : "↕ Full height";
  }

  // -- drags

  /** @param {PointerEvent} event @param {Point} start @returns {Drag} */
  drag(event, start) {
    const { viewport, timeline } = this;
    const { ruler, choosing } = timeline;
    const instantAt = (/** @type {Point} */ { x }) => viewport.instantAt(viewport.placeAt(x));
    if (event.shiftKey) {
      const begin = instantAt(start);
      return { move: (here) => choosing.showRange(begin, instantAt(here)), end: () => timeline.say() };
    }
    if (this.tool === "ruler" || event.altKey) return { move: (here) => ruler.stretch(start, here), end: () => ruler.say(), cancel: () => ruler.end() };
    if (this.tool === "box" || event.ctrlKey || event.metaKey) return this.boxing(start);
    return this.moving(start);
  }

  /** @param {Point} start @returns {Drag} */
  moving(start) {
    const { first, last, width, bottom, top, height } = this.viewport;
    return {
      move: (here) => {
        const aside = ((start.x - here.x) / width) * (last - first);
        const up = ((here.y - start.y) / height) * (top - bottom);
        this.timeline.moves.to({ first: first + aside, last: last + aside, bottom: bottom + up, top: top + up });
      },
    };
  }

  /** @param {Point} start @returns {Drag} */
  boxing(start) {
    let end = start;
    return {
      move: (here) => {
        const [left, right, upper, lower] = this.sidesOf(start, (end = here));
        this.box.hidden = false;
        Object.assign(this.box.style, { left: `${left}px`, width: `${right - left}px`, top: `${upper}px`, height: `${lower - upper}px` });
      },
      end: () => this.zoomInto(start, end),
      cancel: () => (this.box.hidden = true),
    };
  }

  /** @param {Point} one @param {Point} other */
  sidesOf(one, other) {
    return [...between(one.x, other.x, this.viewport.width), ...between(one.y, other.y, this.viewport.height)];
  }

  /** @param {Point} one @param {Point} other */
  zoomInto(one, other) {
    const { viewport } = this;
    this.box.hidden = true;
    const [left, right, upper, lower] = this.sidesOf(one, other);
    /** @type {Partial<Sight>} */ const sight = {};
    if (right - left >= LEAST_BOX) Object.assign(sight, { first: viewport.placeAt(left), last: viewport.placeAt(right) });
    if (lower - upper >= LEAST_BOX) Object.assign(sight, { bottom: viewport.bytesAt(lower), top: viewport.bytesAt(upper) });
    this.timeline.moves.glide(sight, true);
  }

  // -- the byte axis

  /** @param {PointerEvent} event */
  pressAxis(event) {
    const { timeline, bytesAxis, viewport } = this;
    event.stopPropagation();
    if (!timeline.data || event.button) return;
    event.preventDefault();
    bytesAxis.setPointerCapture(event.pointerId);
    const at = (/** @type {PointerEvent} */ next, /** @type {number} */ x) => ({ x, y: timeline.interaction.local(next).y });
    const drag = this.boxing(at(event, 0));
    // From side to side, the width stays as it is.
    whilePressed(bytesAxis, (next) => drag.move(at(next, viewport.width)), ({ type }) => {
      if (type === "pointercancel" || this.box.hidden) this.box.hidden = true;
      else drag.end?.();
    });
  }
}

/** In order, and within 0 and `most`. @param {number} one @param {number} other @param {number} most */
const between = (one, other, most) => [clamp(Math.min(one, other), 0, most), clamp(Math.max(one, other), 0, most)];

export class Controls {
  /** @param {MemoryTimeline} timeline */
  constructor(timeline) {
    this.timeline = timeline;
    this.order = choice("Stack", [["category", "by colour"], ["age", "by age"]], (order) => {
      timeline.order = order;
      timeline.redraw();
      timeline.say();
    });
    this.meaning = choice("Colour", [["category", "category"], ["site", "site"], ["module", "module"], ["size", "size"]], (meaning) => timeline.setMeaning(meaning));
    this.axes = switchOf("Axis", { event: "Event", time: "Time" }, (axis) => timeline.setAxis(axis));
    this.card = choice("Card", [], (card) => {
      timeline.showCard(card);
      timeline.say();
    });
    this.all = button("All", "Show all (0)", () => timeline.moves.showAll(true));
    const zooms = el("div", { class: "mvt-zooms" },
      button("−", "Zoom out (−)", () => timeline.moves.zoom(timeline.moves.middle(), ZOOM, true)),
      button("+", "Zoom in (+)", () => timeline.moves.zoom(timeline.moves.middle(), 1 / ZOOM, true)),
      this.all);
    // What few people change, each with the key that does the same.
    const rows = [["Axis", "T", this.axes.node], ["Drag", "B M", timeline.tools.choice.node]].map(([name, keys, node]) => el("div", { class: "mvt-tool" }, el("span", {}, `${name} `, el("kbd", {}, keys)), node));
    const menu = el("details", { class: "mv-menu mvt-tools" }, el("summary", {}, "Tools"), el("div", {}, this.order.label, this.card.label, ...rows));
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
