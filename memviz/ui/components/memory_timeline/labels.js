// @ts-check
// What is written and drawn over the pixels, as SVG: axes, peaks, failures, the moment, a chosen range and the pin.
import { byteRules, failureMark, groundLine, peakMark, sideLabels, steppedPath, tickAt } from "../axes.js";
import { clamp, shape } from "../base.js";
import { bytesText } from "../words.js";
import { Part } from "./viewport.js";

const LETTER = 6.1;

/** @import { Label } from "../axes.js" */

export class Labels extends Part {
  node = shape("svg", { class: "mvt-svg", "aria-hidden": "true" });
  /** What keeps lines of bytes within the plot. */
  definition = shape("clipPath", { id: `mvt-inside-${this.timeline.id}` });
  clipped = shape("g", { "clip-path": `url(#mvt-inside-${this.timeline.id})` });
  /** The height under the pointer, in all that are linked. */
  ruler = shape("g", {});
  /** @type {number | null} */ rulerBytes = null;

  resize() {
    const { width, height } = this.viewport;
    this.node.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.definition.replaceChildren(shape("rect", { x: 0, y: 0, width, height }));
  }

  draw() {
    const { viewport } = this;
    const rules = byteRules(viewport.top, viewport, (bytes) => viewport.yOf(bytes), viewport.bottom);
    this.clipped.replaceChildren(this.reservedLine());
    const chosen = [...this.pinned(), ...this.moment()];
    this.node.replaceChildren(this.definition, ...rules, ...this.ticks(), this.clipped, ...this.timeline.marks.shapes(), ...this.marks(), ...chosen, this.ruler, this.timeline.ruler.node);
    this.drawRuler();
  }

  ticks() {
    const { viewport } = this;
    const ticks = viewport.isStill() ? [] : viewport.ticks();
    const pill = this.pill();
    const marks = ticks.flatMap(({ place, text }) => {
      const x = viewport.xOf(place);
      const room = (text.length * LETTER) / 2 + 4;
      const isCovered = pill !== null && x + room > pill.left && x - room < pill.left + pill.wide;
      return tickAt(x, text, viewport).slice(0, isCovered ? 1 : 2);
    });
    return [...marks, groundLine(viewport)];
  }

  reservedLine() {
    const { spans } = this.data;
    const { left, wide, instants } = this.timeline.canvas;
    const step = wide / instants.length;
    const count = wide ? instants.length : 0;
    const path = steppedPath(count, (column) => left + column * step, (column) => this.viewport.yOf(spans.reservedUpTo(instants[column])));
    return shape("path", { d: path, class: "mvt-reserved" });
  }

  /** Peaks of the whole trace, wherever the view ends; the ruler of all that are linked; and failures.
   * @returns {SVGElement[]} */
  marks() {
    const { viewport } = this;
    const { spans } = this.data;
    const { width } = viewport;
    const most = spans.reservedPeak();
    const live = spans.live[spans.peak];
    // Of no reserved bytes at all a file says nothing.
    const isSeen = (/** @type {number} */ bytes) => bytes > 0 && viewport.isHeightInSight(bytes);
    const peaks = [[spans.peak, live], [most.instant, most.bytes]].filter(([, bytes]) => isSeen(bytes));
    const lines = peaks.map(([instant, bytes]) => {
      const y = viewport.yOf(bytes);
      return shape("line", { x1: clamp(viewport.xOfInstant(instant), 0, width), x2: width, y1: y, y2: y, class: "mvt-peakline" });
    });
    // Of a state alone nothing is known to be a peak.
    const known = viewport.isStill() ? "" : ", peak";
    /** @type {Label[]} */ const labels = [];
    if (isSeen(most.bytes)) labels.push([viewport.yOf(most.bytes), bytesText(most.bytes), `reserved${known}`]);
    // Segments over time add up to what is reserved, and say so once.
    if (isSeen(live) && !this.timeline.value?.of) labels.push([viewport.yOf(live), bytesText(live), `live${known}`]);
    const ruler = this.sharedRuler(live, labels);
    const peakX = viewport.xOfInstant(spans.peak);
    const peak = peakX >= 0 && peakX <= width && isSeen(live) ? [peakMark(peakX, viewport.yOf(live))] : [];
    return [...lines, ...ruler, ...sideLabels(labels, viewport), ...this.failures(), ...peak];
  }

  /** The baseline's peak, through all that are compared.
   * @param {number} live its own peak @param {Label[]} labels */
  sharedRuler(live, labels) {
    const ruler = this.timeline.value?.ruler;
    if (!ruler || !this.viewport.isHeightInSight(ruler.bytes)) return [];
    const { width } = this.viewport;
    const y = this.viewport.yOf(ruler.bytes);
    // In the baseline itself its own peak says the same.
    if (ruler.bytes !== live) labels.push([y, ruler.is_limit ? bytesText(ruler.bytes) : "", ruler.text]);
    const line = (/** @type {number} */ x, /** @type {string} */ look) => shape("line", { x1: x, x2: x ? x + 20 : width, y1: y, y2: y, class: `mvt-ruler ${look}` });
    // On to the next plot, where there is one: a limit would be drawn through its own words.
    return ruler.is_limit ? [line(0, "mvt-limit")] : [line(0, ""), line(width, "mvt-ruler-on")];
  }

  failures() {
    const { viewport } = this;
    const { width, height } = viewport;
    const parts = [];
    for (const oom of this.timeline.value?.ooms || []) {
      const x = viewport.xOfInstant(oom.event + 1);
      if (x < -8 || x > width + 8) continue;
      const y = clamp(viewport.yOf(oom.reserved), 10, height - 10);
      const isRight = x > width / 2;
      // Beside the line of what is reserved, never on it.
      const beside = y >= 16 ? y - 6 : y + 17;
      const place = { x: x + (isRight ? -13 : 13), y: beside, "text-anchor": isRight ? "end" : "start" };
      // Out of sight, only when it was is shown.
      const mark = failureMark(x, y, height);
      parts.push(...(viewport.isHeightInSight(oom.reserved) ? mark : mark.slice(0, 1)), shape("text", { ...place, class: "mvt-oomtext" }, oom.text));
    }
    return parts;
  }

  // -- what is chosen

  /** @returns {SVGElement[]} */
  pinned() {
    const { pin, canvas } = this.timeline;
    const d = pin < 0 ? "" : canvas.outlineOf(pin);
    return d ? [shape("path", { d, class: "mvt-halo" }), shape("path", { d, class: "mvt-outline" })] : [];
  }

  /** Where the moment is named below the lower edge, over the ticks; null where it is not drawn. */
  pill() {
    const { choosing, value, data } = this.timeline;
    const { width } = this.viewport;
    const x = this.viewport.xOfInstant(choosing.answered);
    // In a row of several the peak has its mark already; a moment is drawn once somebody has chosen another.
    if (!data || x < 0 || x > width || (value?.linked && choosing.answered === data.spans.peak)) return null;
    const words = this.timeline.momentWords();
    const wide = words.length * LETTER + 18;
    return { x, words, wide, left: clamp(x - wide / 2, -40, width - wide + 40) };
  }

  /** @returns {SVGElement[]} */
  moment() {
    const { spans } = this.data;
    const moment = this.timeline.choosing.answered;
    const { height } = this.viewport;
    const parts = this.range();
    const pill = this.pill();
    if (!pill) return parts;
    const { x, left, wide, words } = pill;
    return [
      ...parts,
      shape("line", { x1: x, x2: x, y1: 0, y2: height, class: "mvt-moment" }),
      ...(this.viewport.isHeightInSight(spans.live[moment]) ? [shape("circle", { cx: x, cy: this.viewport.yOf(spans.live[moment]), r: 4, class: "mvt-dot" })] : []),
      shape("rect", { x: left, y: height + 3, width: wide, height: 19, rx: 4, class: "mvt-pill" }),
      shape("text", { x: left + wide / 2, y: height + 17, class: "mvt-pilltext", "text-anchor": "middle" }, words),
    ];
  }

  /** @returns {SVGElement[]} */
  range() {
    const { range } = this.timeline;
    if (!range) return [];
    const { width, height } = this.viewport;
    const [a, b] = range.map((instant) => this.viewport.xOfInstant(instant));
    return [
      shape("rect", { x: -1, y: 0, width: Math.max(a + 1, 0), height, class: "mvt-outside" }),
      shape("rect", { x: Math.max(b, 0), y: 0, width: Math.max(width - b, 0), height, class: "mvt-outside" }),
      ...[a, b].map((x) => shape("line", { x1: x, x2: x, y1: 0, y2: height, class: "mvt-moment" })),
    ];
  }

  /** @param {number | null} [bytes] */
  drawRuler(bytes = this.rulerBytes) {
    this.rulerBytes = bytes;
    if (bytes === null || !Number.isFinite(bytes) || !this.viewport.isHeightInSight(bytes)) return this.ruler.replaceChildren();
    const { width } = this.viewport;
    const y = this.viewport.yOf(bytes);
    this.ruler.replaceChildren(
      shape("line", { x1: 0, x2: width, y1: y, y2: y, class: "mvt-second" }),
      shape("text", { x: width - 4, y: y > 16 ? y - 5 : y + 14, class: "mvt-secondtext" }, bytesText(bytes)),
    );
  }
}
