// @ts-check
// What pointer, wheel and fingers do on the plot, and what the tooltip says of what they point at.
import { clamp, newTip, showTip, tipLines } from "../base.js";
import { bytesText, eventText, grouped } from "../words.js";

const WHEEL_LINE = 24;
const WHEEL_MOST = 400;
const WHEEL_SLOW = 500;
/** As far a pointer may move in a click. */
const STILL_PIXELS = 3;

/** @typedef {import("./timeline.js").MemoryTimeline} MemoryTimeline */
/** @typedef {import("./data.js").TimelineData} TimelineData */
/** @typedef {import("../base.js").Point} Point */

export class Interaction {
  /** @param {MemoryTimeline} timeline */
  constructor(timeline) {
    this.timeline = timeline;
    this.tip = newTip();
    /** Where the tooltip was asked for.
     * @type {Point | null} */
    this.tipAt = null;
    /** Pointers that are down, by their numbers.
     * @type {Map<number, Point>} */
    this.fingers = new Map();
    this.isDragging = false;
  }

  get viewport() {
    return this.timeline.viewport;
  }

  /** @param {HTMLElement} plot */
  listen(plot) {
    plot.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    plot.addEventListener("pointerdown", (event) => this.press(event));
    plot.addEventListener("pointermove", (event) => this.hover(event));
    plot.addEventListener("pointerleave", () => this.leave());
    plot.addEventListener("dblclick", () => this.timeline.showAll(true));
  }

  /** @param {MouseEvent} event @returns {Point} in the plot */
  local(event) {
    const box = this.timeline.plot.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  }

  // -- moving the view

  /** @param {WheelEvent} event */
  wheel(event) {
    const { timeline, viewport } = this;
    if (!timeline.data) return;
    const isSideways = Math.abs(event.deltaX) > Math.abs(event.deltaY);
    // Outward when all is shown lets the page scroll, so that the plot is no trap.
    if (viewport.isAll() && (isSideways || event.deltaY > 0)) return;
    event.preventDefault();
    if (isSideways) {
      const step = (event.deltaX / viewport.width) * (viewport.last - viewport.first);
      return timeline.setView(viewport.first + step, viewport.last + step);
    }
    const factor = Math.exp(clamp(event.deltaY * (event.deltaMode ? WHEEL_LINE : 1), -WHEEL_MOST, WHEEL_MOST) / WHEEL_SLOW);
    timeline.zoomAbout(viewport.placeAt(this.local(event).x), factor);
  }

  /** Moved, the pointer pans, or with Shift chooses a range; two fingers zoom; not moved, it clicks.
   * @param {PointerEvent} event */
  press(event) {
    const { timeline } = this;
    const { plot } = timeline;
    if (!timeline.data || event.button) return;
    plot.focus({ preventScroll: true });
    const start = this.local(event);
    this.fingers.set(event.pointerId, start);
    if (this.fingers.size === 2) return;
    plot.setPointerCapture(event.pointerId);
    const drag = event.shiftKey ? this.ranging(start) : this.panning(start);
    let isMoved = false;
    const move = (/** @type {PointerEvent} */ next) => {
      const here = this.local(next);
      if (this.fingers.size === 2) return this.pinch(next.pointerId, here);
      isMoved = isMoved || Math.hypot(here.x - start.x, here.y - start.y) > STILL_PIXELS;
      if (!isMoved) return;
      this.isDragging = true;
      this.hideTip();
      drag(here);
    };
    const done = (/** @type {PointerEvent} */ next) => {
      this.fingers.delete(next.pointerId);
      plot.removeEventListener("pointermove", move);
      for (const name of ENDS) plot.removeEventListener(name, done);
      this.isDragging = false;
      if (next.type === "pointercancel") return;
      if (!isMoved) this.click(start);
      else if (event.shiftKey) timeline.say();
    };
    plot.addEventListener("pointermove", move);
    for (const name of ENDS) plot.addEventListener(name, done);
  }

  /** @param {Point} start */
  panning(start) {
    const { first, last, width } = this.viewport;
    return (/** @type {Point} */ here) => {
      const step = ((start.x - here.x) / width) * (last - first);
      this.timeline.setView(first + step, last + step);
    };
  }

  /** @param {Point} start */
  ranging(start) {
    const instantAt = (/** @type {Point} */ { x }) => this.viewport.instantAt(this.viewport.placeAt(x));
    const begin = instantAt(start);
    return (/** @type {Point} */ here) => this.timeline.showRange(begin, instantAt(here));
  }

  /** @param {number} id of the finger that moved @param {Point} here */
  pinch(id, here) {
    const before = this.fingers.get(id);
    const other = [...this.fingers].find(([finger]) => finger !== id)?.[1];
    if (!before || !other) return;
    const [was, is] = [Math.abs(before.x - other.x), Math.abs(here.x - other.x)];
    this.fingers.set(id, here);
    if (was > 4 && is > 4) this.timeline.zoomAbout(this.viewport.placeAt((other.x + here.x) / 2), was / is);
  }

  /** On an allocation: pin it. On free ground above the stack, or on the axis: choose that moment.
   * @param {Point} at */
  click(at) {
    const { timeline } = this;
    const row = timeline.canvas.rowAt(at);
    if (row >= 0) return timeline.togglePin(row);
    timeline.setMoment(timeline.canvas.instants[timeline.canvas.columnAt(at.x)]);
  }

  // -- the tooltip

  /** @param {PointerEvent} event */
  hover(event) {
    const { data, canvas } = this.timeline;
    if (!data || !canvas.instants.length || this.isDragging || event.pointerType === "touch") return;
    const at = this.local(event);
    this.timeline.sayRuler(this.viewport.bytesAt(at.y));
    const row = canvas.rowAt(at);
    if (row < 0) return this.hideTip();
    this.tipAt = at;
    this.showTip(at, this.tipLines(at, row, data));
  }

  leave() {
    this.hideTip();
    this.timeline.sayRuler(null);
  }

  /** @param {Point} at @param {number} row @param {TimelineData} data @returns {string[][]} */
  tipLines(at, row, data) {
    const { spans } = data;
    const { canvas } = this.timeline;
    if (spans.size[row] < canvas.bytesPerPixel()) {
      const { count, bytes } = canvas.insidePixel(at, data);
      if (count > 1) return [[`${grouped(count)} allocations, ${bytesText(bytes)} together`], ["zoom in to tell them apart"]];
    }
    const end = spans.end[row] >= spans.instants ? "the end" : grouped(spans.end[row] - 1);
    return [[bytesText(spans.size[row]), this.siteOf(row, data)], [data.labels[data.group[row]]], [`${eventText(spans.start[row] - 1)} → ${end}`]];
  }

  /** Once the sites are there, what is pointed at then is named.
   * @param {number} row @param {TimelineData} data */
  siteOf(row, data) {
    if (!data.sitesAsked) data.readSites().then(() => this.timeline.data === data && this.nameWhatIsPointedAt(data));
    return data.siteOf(row);
  }

  /** @param {TimelineData} data */
  nameWhatIsPointedAt(data) {
    if (this.tip.hidden || !this.tipAt) return;
    const row = this.timeline.canvas.rowAt(this.tipAt);
    if (row >= 0) this.showTip(this.tipAt, this.tipLines(this.tipAt, row, data));
  }

  /** @param {Point} at @param {string[][]} lines */
  showTip(at, lines) {
    showTip(this.tip, at, this.viewport, tipLines(lines));
  }

  hideTip() {
    this.tip.hidden = true;
  }
}

/** @type {("pointerup" | "pointercancel")[]} */
const ENDS = ["pointerup", "pointercancel"];
