// @ts-check
// What pointer, wheel and fingers do on the plot, and what the tooltip says of what they point at.
import { clamp, newTip, pointIn, showTip, tipLines, whilePressed } from "../base.js";
import { bytesText, eventText, grouped } from "../words.js";
import { Part } from "./viewport.js";

const WHEEL_LINE = 24;
const WHEEL_MOST = 400;
const WHEEL_SLOW = 500;
const PAD_MOST = 40;
const PAD_FASTER = 8;
const FINGERS_APART = 24;
/** As far a pointer may move in a click. */
export const STILL_PIXELS = 3;

/** @import { Point } from "../base.js" */

export class Interaction extends Part {
  tip = newTip();
  /** @type {Point | null} */ tipAt = null;
  /** @type {Map<number, Point>} */ fingers = new Map();
  isDragging = false;

  /** @param {HTMLElement} plot */
  listen(plot) {
    plot.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    // Two fingers zoom; the page is left alone then.
    plot.addEventListener("touchmove", (event) => event.touches.length > 1 && event.preventDefault(), { passive: false });
    plot.addEventListener("pointerdown", (event) => this.press(event));
    plot.addEventListener("pointermove", (event) => this.hover(event));
    plot.addEventListener("pointerleave", () => this.leave());
    plot.addEventListener("dblclick", () => this.timeline.moves.showAll());
  }

  /** @param {MouseEvent} event @returns {Point} in the plot */
  local(event) {
    return pointIn(this.timeline.plot, event);
  }

  // -- moving the view

  /** With Ctrl or Shift, or over the byte axis, it zooms the height. @param {WheelEvent} event */
  wheel(event) {
    const { timeline, viewport } = this;
    if (!timeline.data) return;
    const isHeld = event.ctrlKey || event.metaKey || event.shiftKey;
    if (isHeld || event.target === timeline.tools.bytesAxis) return this.wheelHeight(event, isHeld);
    const isSideways = Math.abs(event.deltaX) > Math.abs(event.deltaY);
    // Outward when all is shown lets the page scroll, so that the plot is no trap.
    if (viewport.isAll() && (isSideways || event.deltaY > 0)) return;
    event.preventDefault();
    if (isSideways) return timeline.moves.shift(event.deltaX / viewport.width);
    timeline.moves.zoom(viewport.placeAt(this.local(event).x), wheelFactor(event, event.deltaY));
  }

  /** Some browsers turn a wheel sideways while Shift is held. With Ctrl the browser would zoom its whole page.
   * @param {WheelEvent} event @param {boolean} isHeld */
  wheelHeight(event, isHeld) {
    const { timeline, viewport } = this;
    const turned = event.deltaY || event.deltaX;
    if (!isHeld && viewport.isFullHeight() && turned > 0) return;
    event.preventDefault();
    timeline.moves.zoomHeight(viewport.bytesAt(this.local(event).y), wheelFactor(event, turned));
  }

  /** Moved, the pointer does what its tool does, two fingers zoom; not moved, it clicks.
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
    const drag = timeline.tools.drag(event, start);
    let isMoved = false;
    let isPinched = false;
    const move = (/** @type {PointerEvent} */ next) => {
      const here = this.local(next);
      if (this.fingers.size === 2) {
        isPinched = true;
        drag.cancel?.();
        return this.pinch(next.pointerId, here);
      }
      isMoved = isMoved || Math.hypot(here.x - start.x, here.y - start.y) > STILL_PIXELS;
      if (!isMoved || isPinched) return;
      this.isDragging = true;
      this.hideTip();
      drag.move(here);
    };
    whilePressed(plot, move, (next) => {
      this.fingers.delete(next.pointerId);
      if (this.fingers.size) return true;
      this.isDragging = false;
      if (next.type === "pointercancel" || isPinched) drag.cancel?.();
      else if (!isMoved) this.click(start);
      else drag.end?.();
    });
  }

  /** Each side of the view is zoomed by what the fingers do along it, where they are far enough apart to tell.
   * @param {number} id of the finger that moved @param {Point} here */
  pinch(id, here) {
    const { moves } = this.timeline;
    const before = this.fingers.get(id);
    const other = [...this.fingers].find(([finger]) => finger !== id)?.[1];
    if (!before || !other) return;
    this.fingers.set(id, here);
    const [wide, high] = [spreading(before.x, here.x, other.x), spreading(before.y, here.y, other.y)];
    if (wide) moves.zoom(this.viewport.placeAt((other.x + here.x) / 2), wide);
    if (high) moves.zoomHeight(this.viewport.bytesAt((other.y + here.y) / 2), high);
  }

  /** On an allocation: pin it. On free ground above the stack, or on the axis: choose that moment.
   * @param {Point} at */
  click(at) {
    const { timeline } = this;
    const row = timeline.canvas.rowAt(at);
    if (row >= 0) return timeline.choosing.togglePin(row);
    timeline.choosing.setMoment(timeline.canvas.instants[timeline.canvas.columnAt(at.x)]);
  }

  // -- the tooltip

  /** @param {PointerEvent} event */
  hover(event) {
    const { data, canvas } = this.timeline;
    if (!data || !canvas.instants.length || this.isDragging || event.pointerType === "touch") return;
    if (event.target === this.timeline.tools.eventsAxis) return this.leave();
    const at = this.local(event);
    this.timeline.sayRuler(this.viewport.bytesAt(at.y));
    this.point(at);
  }

  /** @param {Point} at */
  point(at) {
    const row = this.timeline.canvas.rowAt(at);
    if (row < 0) return this.hideTip();
    this.tipAt = at;
    this.showTip(at, this.tipLines(at, row));
  }

  leave() {
    this.hideTip();
    this.timeline.sayRuler(null);
  }

  /** @param {Point} at @param {number} row @returns {string[][]} */
  tipLines(at, row) {
    const { data } = this;
    const { spans } = data;
    const { canvas } = this.timeline;
    if (spans.size[row] < canvas.bytesPerPixel()) {
      const { count, bytes } = canvas.insidePixel(at);
      if (count > 1) return [[`${grouped(count)} ${this.timeline.value?.of || "allocations"}, ${bytesText(bytes)} together`], ["zoom in to separate them: Shift and wheel zoom the height"]];
    }
    const end = spans.end[row] >= spans.instants ? "the end" : grouped(spans.end[row] - 1);
    return [[bytesText(spans.size[row]), this.siteOf(row)], [data.groupWords(row)], [`${eventText(spans.start[row] - 1)} → ${end}`]];
  }

  /** Once the sites are there, what is pointed at then is named.
   * @param {number} row */
  siteOf(row) {
    const { data } = this;
    const name = () => this.timeline.data === data && !this.tip.hidden && this.tipAt && this.point(this.tipAt);
    if (!data.sitesAsked) data.readSites().then(name);
    return data.siteOf(row);
  }

  /** @param {Point} at @param {string[][]} lines */
  showTip(at, lines) {
    showTip(this.tip, at, this.viewport, tipLines(lines));
  }

  hideTip() {
    this.tip.hidden = true;
  }
}

/** @param {WheelEvent} event @param {number} turned */
function wheelFactor(event, turned) {
  const pixels = turned * (event.deltaMode ? WHEEL_LINE : 1);
  // Fingers on a pad come as a wheel with Ctrl that turns in very small steps.
  const isPad = event.ctrlKey && Math.abs(pixels) < PAD_MOST;
  return Math.exp(clamp(pixels * (isPad ? PAD_FASTER : 1), -WHEEL_MOST, WHEEL_MOST) / WHEEL_SLOW);
}

/** How much nearer two fingers have come to each other along one side; 0 where they are too near to tell.
 * @param {number} was @param {number} is @param {number} other */
function spreading(was, is, other) {
  const [before, after] = [Math.abs(was - other), Math.abs(is - other)];
  return before > FINGERS_APART && after > FINGERS_APART ? before / after : 0;
}
