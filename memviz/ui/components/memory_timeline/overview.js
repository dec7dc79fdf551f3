// @ts-check
// The whole trace in a low strip, and the window in it that the plot shows, which can be dragged and stretched.
import { clamp, el, penOf } from "../base.js";
import { instantsOf } from "./canvas.js";
import { STILL_PIXELS } from "./interaction.js";
import { Part } from "./part.js";

export const OVERVIEW = 30;
/** Above the highest peak. */
export const OVERVIEW_ROOM = 6;
const EDGE_PIXELS = 8;
const LEAST_WINDOW = 6;

/** @typedef {import("./timeline.js").MemoryTimeline} MemoryTimeline */
/** @typedef {import("./data.js").TimelineData} TimelineData */

export class Overview extends Part {
  /** @param {MemoryTimeline} timeline */
  constructor(timeline) {
    super(timeline);
    this.canvas = el("canvas", { class: "mvt-overview", "aria-hidden": "true" });
    this.window = el("div", { class: "mvt-window", "aria-hidden": "true" });
    this.node = el("div", { class: "mvt-overview-row" }, this.canvas, this.window);
    /** Where the canvas is, as last drawn: to ask the page each time would lay out all that a frame has drawn, twice.
     * @type {{ left: number, width: number } | null} */
    this.box = null;
    this.node.addEventListener("pointerdown", (event) => this.press(event));
  }

  /** @param {TimelineData} data */
  draw({ spans }) {
    const width = this.canvas.clientWidth;
    if (!width) return;
    this.box = { left: this.canvas.offsetLeft, width };
    const pen = penOf(this.canvas, { width, height: OVERVIEW });
    const { viewport } = this;
    const instants = instantsOf(spans, viewport, { ...viewport.whole(), columns: width });
    const most = Math.max(spans.live[spans.peak], 1);
    pen.fillStyle = this.timeline.colour("--mv-ink-3");
    for (let c = 0; c < width; c++) {
      const high = (spans.live[instants[c]] / most) * (OVERVIEW - OVERVIEW_ROOM);
      pen.fillRect(c, OVERVIEW - high, 1, high);
    }
    this.placeWindow();
  }

  placeWindow() {
    if (!this.box) return;
    const { viewport } = this;
    const whole = viewport.whole();
    const length = whole.last - whole.first || 1;
    const { left: begin, width } = this.box;
    const left = ((viewport.first - whole.first) / length) * width;
    const right = ((viewport.last - whole.first) / length) * width;
    this.window.style.left = `${begin + left}px`;
    this.window.style.width = `${Math.max(right - left, 6)}px`;
    const [upper, lower] = this.heightOf(viewport);
    this.window.style.top = `${upper}px`;
    this.window.style.height = `${lower - upper}px`;
  }

  /** Of the window, in the strip, where every height below the peak has its place.
   * @param {import("./viewport.js").Viewport} viewport */
  heightOf(viewport) {
    if (viewport.isFullHeight() || !this.timeline.data) return [0, OVERVIEW];
    const { live, peak } = this.timeline.data.spans;
    const at = (/** @type {number} */ bytes) => OVERVIEW - (bytes / Math.max(live[peak], 1)) * (OVERVIEW - OVERVIEW_ROOM);
    const lower = clamp(at(viewport.bottom), LEAST_WINDOW, OVERVIEW);
    return [clamp(at(viewport.top), 0, lower - LEAST_WINDOW), lower];
  }

  /** An edge of the window stretches it, its inside moves it, and elsewhere it comes to where the pointer is. What is
   * not moved is a click, which chooses the moment.
   * @param {PointerEvent} event */
  press(event) {
    const { timeline } = this;
    if (!timeline.data || event.button) return;
    event.preventDefault();
    const box = this.canvas.getBoundingClientRect();
    const whole = timeline.viewport.whole();
    const length = whole.last - whole.first;
    const place = (/** @type {PointerEvent} */ { clientX }) => whole.first + clamp((clientX - box.left) / box.width, 0, 1) * length;
    const start = place(event);
    const { first, last } = timeline.viewport;
    const near = (EDGE_PIXELS / box.width) * length;
    const edge = Math.abs(start - first) < near ? "first" : Math.abs(start - last) < near ? "last" : null;
    const isInside = start > first && start < last && last - first < length * 0.999;
    if (!edge && !isInside) timeline.moves.to({ first: start - (last - first) / 2, last: start + (last - first) / 2 });
    const from = { first: timeline.viewport.first, last: timeline.viewport.last };
    let isMoved = false;
    const move = (/** @type {PointerEvent} */ next) => {
      isMoved = isMoved || Math.abs(next.clientX - event.clientX) > STILL_PIXELS;
      if (!isMoved) return;
      const here = place(next);
      if (edge === "first") timeline.moves.to({ first: Math.min(here, last), last });
      else if (edge === "last") timeline.moves.to({ first, last: Math.max(here, first) });
      else timeline.moves.to({ first: from.first + here - start, last: from.last + here - start });
    };
    const done = () => {
      window.removeEventListener("pointermove", move);
      window.removeEventListener("pointerup", done);
      if (!isMoved) this.choose(start, length / box.width);
    };
    window.addEventListener("pointermove", move);
    window.addEventListener("pointerup", done);
  }

  /** The moment that the strip shows there.
   * @param {number} place @param {number} pixel */
  choose(place, pixel) {
    const { data, viewport, choosing } = this.timeline;
    if (data) choosing.setMoment(instantsOf(data.spans, viewport, { first: place - pixel / 2, last: place + pixel / 2, columns: 1 })[0]);
  }
}
