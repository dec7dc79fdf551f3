// @ts-check
// Above the plot: the whole trace in a low strip, the window in it that the plot shows, which can be dragged and stretched,
// and the phases of the run.
import { clamp, el, penOf, whilePressed } from "../base.js";
import { instantsOf } from "./canvas.js";
import { STILL_PIXELS } from "./interaction.js";
import { Part } from "./viewport.js";

export const OVERVIEW = 30;
/** Above the highest peak. */
export const OVERVIEW_ROOM = 6;
const EDGE_PIXELS = 8;
const LEAST_WINDOW = 6;

export class Overview extends Part {
  canvas = el("canvas", { class: "mvt-overview", "aria-hidden": "true" });
  window = el("div", { class: "mvt-window", "aria-hidden": "true" });
  node = el("div", { class: "mvt-overview-row", onpointerdown: (/** @type {PointerEvent} */ event) => this.press(event) }, this.canvas, this.window);
  /** Where the canvas is, as last drawn: to ask the page each time would lay out all that a frame has drawn, twice.
   * @type {{ left: number, width: number } | null} */
  box = null;

  draw() {
    const { spans } = this.data;
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
    const [upper, lower] = this.heightOf(viewport);
    Object.assign(this.window.style, { left: `${begin + left}px`, width: `${Math.max(right - left, 6)}px`, top: `${upper}px`, height: `${lower - upper}px` });
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
    whilePressed(window, (next) => {
      isMoved = isMoved || Math.abs(next.clientX - event.clientX) > STILL_PIXELS;
      if (!isMoved) return;
      const here = place(next);
      if (edge === "first") timeline.moves.to({ first: Math.min(here, last), last });
      else if (edge === "last") timeline.moves.to({ first, last: Math.max(here, first) });
      else timeline.moves.to({ first: from.first + here - start, last: from.last + here - start });
    }, () => {
      if (isMoved || !timeline.data) return;
      const pixel = length / box.width;
      timeline.choosing.setMoment(instantsOf(timeline.data.spans, timeline.viewport, { first: start - pixel / 2, last: start + pixel / 2, columns: 1 })[0]);
    });
  }
}

const MOST_PHASES = 400;
const LETTER = 6.2;

export class Phases extends Part {
  node = el("div", { class: "mvt-phases", "aria-hidden": "true" });

  draw() {
    const { value, viewport } = this.timeline;
    const phases = value?.phases || [];
    // An empty band keeps the plot where it was before the phases were known, and byte axes beside one that has some level.
    this.node.hidden = !phases.length && Boolean(value?.linked) && !value?.band;
    const nodes = [];
    for (const [name, first, last] of phases) {
      const [begin, end] = [viewport.xOf(viewport.placeOf(first)), viewport.xOf(viewport.placeOf(last))];
      if (end < 0 || begin > viewport.width || end - begin < 2) continue;
      const [left, right] = [Math.max(begin, 0), Math.min(end, viewport.width)];
      nodes.push(el("span", { class: "mvt-phase", title: name, style: `left:${left}px;width:${right - left - 1}px` }, phaseLabel(name, right - left)));
      if (nodes.length > MOST_PHASES) break;
    }
    this.node.replaceChildren(...nodes);
  }
}

/** The whole name, else its first word, else nothing: a label is never cut.
 * @param {string} name @param {number} width */
export function phaseLabel(name, width) {
  const room = (width - 12) / LETTER;
  const first = name.split(/[#.\s]/)[0];
  return name.length <= room ? name : first.length <= room ? first : "";
}
