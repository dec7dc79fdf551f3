// @ts-check
// What a drag on the plot does: it moves the view, chooses a range, zooms into a box or draws a ruler; the byte axis at the
// side, where a drag chooses the bytes that fill the height; and the controls beside the legend.
import { button, clamp, el, switchOf, whilePressed } from "../base.js";
import { Part, ZOOM } from "./viewport.js";

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
  fullHeight = button("↕ Full height", "Show the full height (0 shows all)", () => this.timeline.moves.showFullHeight());
  choice = switchOf("Drag on the plot", TOOLS, (tool) => this.take(tool));

  listen() {
    this.take("move");
    this.fullHeight.classList.add("mvt-full");
    this.fullHeight.hidden = true;
    this.bytesAxis.addEventListener("pointerdown", (event) => this.pressAxis(event));
    this.bytesAxis.addEventListener("dblclick", (event) => {
      event.stopPropagation();
      this.timeline.moves.showFullHeight();
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

export class Controls extends Part {
  order = choice("Stack", [["category", "by colour"], ["age", "by age"]], (order) => {
    this.timeline.order = order;
    this.timeline.redraw();
    this.timeline.say();
  });
  meaning = choice("Colour", [["category", "category"], ["site", "site"], ["module", "module"], ["size", "size"]], (meaning) => this.timeline.setMeaning(meaning));
  axes = switchOf("Axis", { event: "Event", time: "Time" }, (axis) => this.timeline.setAxis(axis));
  card = choice("Card", [], (card) => {
    this.timeline.showCard(card);
    this.timeline.say();
  });
  all = button("All", "Show all (0)", () => this.timeline.moves.showAll());
  node = el("div", { class: "mvt-controls" }, this.meaning.label, this.zooms(), this.menu());

  zooms() {
    const zoom = (/** @type {number} */ factor) => () => this.timeline.moves.zoom(this.timeline.moves.middle(), factor, true);
    return el("div", { class: "mvt-zooms" }, button("−", "Zoom out (−)", zoom(ZOOM)), button("+", "Zoom in (+)", zoom(1 / ZOOM)), this.all);
  }

  /** What few people change, each with the key that does the same. */
  menu() {
    const rows = [["Axis", "T", this.axes.node], ["Drag", "B M", this.timeline.tools.choice.node]].map(([name, keys, node]) => el("div", { class: "mvt-tool" }, el("span", {}, `${name} `, el("kbd", {}, keys)), node));
    return el("details", { class: "mv-menu mvt-tools" }, el("summary", {}, "Tools"), el("div", {}, this.order.label, this.card.label, ...rows));
  }

  draw() {
    this.all.hidden = this.viewport.isFullHeight() && this.viewport.isAll();
  }
}

/** @param {string} name @param {[value: string, text: string][]} options @param {(value: string) => void} change */
function choice(name, options, change) {
  const select = el("select", { "aria-label": name, onchange: () => change(select.value) }, ...options.map(([value, text]) => el("option", { value }, text)));
  return { select, label: el("label", { class: "mvt-choice" }, el("span", {}, `${name} `), select) };
}
