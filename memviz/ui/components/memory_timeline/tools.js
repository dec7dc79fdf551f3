// @ts-check
// What a drag on the plot does: it moves the view, chooses a range, zooms into a box
// or draws a ruler; and the byte axis at the side, where a drag chooses the bytes that fill the height.
import { el, switchOf } from "../base.js";
import { Part } from "./part.js";

/** A box lower or narrower than this leaves that side of the view as it is. */
const LEAST_BOX = 6;
/** @type {Record<Tool, string>} */
const TOOLS = { move: "Move", box: "Box", ruler: "Ruler" };

/** @typedef {import("./timeline.js").MemoryTimeline} MemoryTimeline */
/** @typedef {import("./viewport.js").Sight} Sight */
/** @typedef {import("../base.js").Point} Point */
/** @typedef {"move" | "box" | "ruler"} Tool */
/** What happens as a pointer moves, once it is let go, and if it never comes to that.
 * @typedef {{ move: (here: Point) => void, end?: () => void, cancel?: () => void }} Drag */

export class Tools extends Part {
  /** @param {MemoryTimeline} timeline */
  constructor(timeline) {
    super(timeline);
    /** @type {Tool} */
    this.tool = "move";
    this.box = el("div", { class: "mvt-box", hidden: "", "aria-hidden": "true" });
    this.bytesAxis = el("div", { class: "mvt-bytes", "aria-hidden": "true", title: "Drag over the bytes to see, or turn the wheel; a double click shows all of them" });
    this.eventsAxis = el("div", { class: "mvt-events", "aria-hidden": "true", title: "A click chooses that moment" });
    const words = "Show the full height (0 shows all)";
    this.fullHeight = el("button", { type: "button", class: "mvt-button mvt-full", hidden: "", title: words, "aria-label": words, onclick: () => timeline.moves.showFullHeight(true) }, "↕ Full height");
    this.choice = switchOf("A drag on the plot", TOOLS, (tool) => this.take(tool));
    this.take("move");
  }

  listen() {
    this.bytesAxis.addEventListener("pointerdown", (event) => this.pressAxis(event));
    this.bytesAxis.addEventListener("dblclick", (event) => {
      event.stopPropagation();
      this.timeline.moves.showFullHeight(true);
    });
    for (const name of ["pointerdown", "dblclick", "keydown"]) this.fullHeight.addEventListener(name, (event) => event.stopPropagation());
  }

  /** What another one has drawn goes.
   * @param {Tool} tool */
  take(tool) {
    this.tool = tool;
    this.timeline.ruler.end();
    this.choice.show(tool);
    this.timeline.root.dataset.tool = tool;
  }

  /** Back to moving.
   * @returns {boolean} whether there was anything to end */
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
    if (event.shiftKey) return this.ranging(start);
    if (this.tool === "ruler" || event.altKey) return this.measuring(start);
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
  ranging(start) {
    const { viewport, timeline } = this;
    const begin = viewport.instantAt(viewport.placeAt(start.x));
    return { move: ({ x }) => timeline.choosing.showRange(begin, viewport.instantAt(viewport.placeAt(x))), end: () => timeline.say() };
  }

  /** @param {Point} start @returns {Drag} */
  boxing(start) {
    let end = start;
    return {
      move: (here) => this.showBox(start, (end = here)),
      end: () => this.zoomInto(start, end),
      cancel: () => this.hideBox(),
    };
  }

  /** @param {Point} start @returns {Drag} */
  measuring(start) {
    const { ruler } = this.timeline;
    return { move: (here) => ruler.stretch(start, here), end: () => ruler.say(), cancel: () => ruler.end() };
  }

  /** @param {Point} one @param {Point} other */
  showBox(one, other) {
    const { style } = this.box;
    const { width, height } = this.viewport;
    const [left, right] = between(one.x, other.x, width);
    const [upper, lower] = between(one.y, other.y, height);
    this.box.hidden = false;
    Object.assign(style, { left: `${left}px`, width: `${right - left}px`, top: `${upper}px`, height: `${lower - upper}px` });
  }

  hideBox() {
    this.box.hidden = true;
  }

  /** @param {Point} one @param {Point} other */
  zoomInto(one, other) {
    const { viewport } = this;
    this.hideBox();
    const [left, right] = between(one.x, other.x, viewport.width);
    const [upper, lower] = between(one.y, other.y, viewport.height);
    /** @type {Partial<Sight>} */
    const sight = {};
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
    const move = (/** @type {PointerEvent} */ next) => drag.move(at(next, viewport.width));
    const done = (/** @type {PointerEvent} */ next) => {
      bytesAxis.removeEventListener("pointermove", move);
      for (const name of ENDS) bytesAxis.removeEventListener(name, done);
      // From side to side, the width stays as it is.
      if (next.type === "pointercancel" || this.box.hidden) this.hideBox();
      else drag.end?.();
    };
    bytesAxis.addEventListener("pointermove", move);
    for (const name of ENDS) bytesAxis.addEventListener(name, done);
  }
}

/** In order, and within 0 and `most`.
 * @param {number} one @param {number} other @param {number} most @returns {[number, number]} */
function between(one, other, most) {
  const [low, high] = one < other ? [one, other] : [other, one];
  return [Math.max(Math.min(low, most), 0), Math.max(Math.min(high, most), 0)];
}

/** Of a press on the plot or at its side.
 * @type {("pointerup" | "pointercancel")[]} */
export const ENDS = ["pointerup", "pointercancel"];
