// @ts-check
// Several timelines over each other: the baseline as a silhouette, the others as lines, what lies between coloured.
// It is a memory timeline that draws differently: zooming, panning, axes and keys are inherited, and the columns come
// from the timelines of the same name, which have unpacked them already. So nothing is asked of the server.
import { peakMark, spread } from "../axes.js";
import { clamp, el, mounting, onSaid, penOf, shape, showTip } from "../base.js";
import { instantsOf, PlotCanvas } from "../memory_timeline/canvas.js";
import { Interaction } from "../memory_timeline/interaction.js";
import { Labels } from "../memory_timeline/labels.js";
import { linked, MemoryTimeline } from "../memory_timeline/timeline.js";
import { bytesText, deltaText } from "../words.js";

const HEADROOM = 1.12;

/** @typedef {CanvasRenderingContext2D} Pen */
/** The timelines' name, how many there are, which is compared with the first, and whether this is seen.
 * @typedef {{ linked: string, count: number, other: number, shown: boolean, label: string }} Wanted */

class Overlay extends MemoryTimeline {
  /** @type {Wanted | null} */ wanted = null;
  /** @type {MemoryTimeline[]} */ sides = [];

  build() {
    super.build();
    onSaid("memviz:joined", (joined) => this.wanted && joined.linked === this.wanted.linked && this.gather(this.wanted));
    // What only one trace's own timeline can answer.
    Object.assign(this.choosing, { togglePin() {} });
    Object.assign(this.keys, { walk() {}, mark() {}, fit() {} });
    Object.assign(this.labels, { pinned: () => [], moment: () => [] });
    Object.assign(this, { showLit() {}, say() {} });
  }

  get kinds() {
    return { Canvas: Lines, Labels: Peaks, Interaction: Pointing };
  }

  /** @param {any} value */
  async load(value) {
    this.wanted = value && value.linked ? value : null;
    this.root.hidden = !this.wanted || !this.wanted.shown;
    this.root.classList.add("mvt-plain");
    if (!this.wanted) this.value = null;
    else this.gather(this.wanted);
  }

  /** Once all are there. Each keeps its own columns and its own place on the axis; the baseline lends its own to us.
   * @param {Wanted} wanted */
  gather(wanted) {
    const sides = linked(wanted.linked);
    const [first] = sides;
    if (!wanted.shown || sides.length < wanted.count || !first?.data || !first.value) return;
    this.sides = sides;
    this.data = first.data;
    const { key, align, ruler } = first.value;
    this.value = { key, linked: wanted.linked, plain: true, align, ruler };
    const { axis, instants, times, align: placed } = first.viewport;
    const most = sides.map(({ data }) => (data ? data.spans.live[data.spans.peak] : 0));
    Object.assign(this.viewport, { axis, instants, times, align: placed });
    this.viewport.setMost(Math.max(...most, 1) * HEADROOM);
    this.viewport.look({ first: first.viewport.first, last: first.viewport.last });
    this.moment = first.data.spans.peak;
    this.plot.setAttribute("aria-label", wanted.label);
    this.resize();
  }

  part() {
    const [first, ...others] = this.sides.map(({ value }) => `${value?.badge} ${value?.name || ""}`);
    const other = this.sides[this.wanted?.other ?? 0]?.value?.badge;
    const keys = [["--mv-ink-3", first], ...others.map((name) => ["--mv-ink", name]), ["--mv-grew", `${other} above A`], ["--mv-shrank", `${other} below A`]];
    return { ...super.part(), title: "", keys: keys.map(([colour, words]) => /** @type {[string, string]} */ ([this.colour(colour), words])) };
  }
}

/** @param {import("../memory_timeline/viewport.js").Part} part */
const overlayOf = ({ timeline }) => /** @type {Overlay} */ (timeline);

class Lines extends PlotCanvas {
  /** Most live bytes in each column of each side; NaN where it has nothing. @type {Float64Array[]} */
  lines = [];

  draw() {
    const { width, height } = this.viewport;
    const { sides, wanted } = overlayOf(this);
    [this.left, this.wide] = [0, width];
    this.lines = sides.map((side) => this.columnsOf(side, width));
    const pen = penOf(this.node, { width, height });
    const [baseline, ...others] = this.lines;
    const colour = (/** @type {string} */ name) => this.timeline.colour(name);
    this.fill(pen, baseline, colour("--mv-ink-3"), 0.3);
    const chosen = this.lines[wanted?.other ?? -1];
    if (chosen) this.between(pen, baseline, chosen);
    this.stroke(pen, baseline, colour("--mv-ink-3"), 1);
    for (const line of others) if (line !== chosen) this.stroke(pen, line, colour("--mv-ink-2"), 1);
    if (chosen) this.stroke(pen, chosen, colour("--mv-ink"), 1.5);
  }

  /** @param {MemoryTimeline} side @param {number} width */
  columnsOf(side, width) {
    const columns = new Float64Array(width).fill(NaN);
    const { viewport } = this.timeline;
    const own = side.viewport.own();
    const [first, last] = [viewport.first, viewport.last].map((place) => side.viewport.fromShared(viewport.toShared(place)));
    const at = (/** @type {number} */ place) => Math.round(clamp((place - first) / (last - first), 0, 1) * width);
    const [begin, end] = [at(own.first), at(own.last)];
    if (end <= begin || !side.data) return columns;
    const { spans } = side.data;
    const instants = instantsOf(spans, side.viewport, { first: Math.max(first, own.first), last: Math.min(last, own.last), columns: end - begin });
    instants.forEach((instant, column) => (columns[begin + column] = spans.live[instant]));
    return columns;
  }

  /** @param {Pen} pen @param {Float64Array} line @param {string} colour @param {number} alpha */
  fill(pen, line, colour, alpha) {
    const { viewport } = this.timeline;
    pen.globalAlpha = alpha;
    pen.fillStyle = colour;
    line.forEach((bytes, x) => bytes >= 0 && pen.fillRect(x, viewport.yOf(bytes), 1, viewport.height - viewport.yOf(bytes)));
    pen.globalAlpha = 1;
  }

  /** @param {Pen} pen @param {Float64Array} baseline @param {Float64Array} other */
  between(pen, baseline, other) {
    const { viewport } = this.timeline;
    const [grew, shrank] = [this.timeline.colour("--mv-grew"), this.timeline.colour("--mv-shrank")];
    pen.globalAlpha = 0.55;
    for (let x = 0; x < baseline.length; x++) {
      if (!(baseline[x] >= 0) || !(other[x] >= 0) || baseline[x] === other[x]) continue;
      pen.fillStyle = other[x] > baseline[x] ? grew : shrank;
      const [top, bottom] = [viewport.yOf(Math.max(baseline[x], other[x])), viewport.yOf(Math.min(baseline[x], other[x]))];
      pen.fillRect(x, top, 1, bottom - top);
    }
    pen.globalAlpha = 1;
  }

  /** @param {Pen} pen @param {Float64Array} line @param {string} colour @param {number} width */
  stroke(pen, line, colour, width) {
    pen.strokeStyle = colour;
    pen.lineWidth = width;
    pen.beginPath();
    let isDrawing = false;
    line.forEach((bytes, x) => {
      if (bytes >= 0) {
        const y = this.timeline.viewport.yOf(bytes);
        if (isDrawing) pen.lineTo(x, y);
        else pen.moveTo(x, y);
        pen.lineTo(x + 1, y);
      }
      isDrawing = bytes >= 0;
    });
    pen.stroke();
  }
}

class Peaks extends Labels {
  reservedLine() {
    return shape("path", { d: "", class: "mvt-reserved" });
  }

  /** Each peak with its letter, and its bytes at the right.
   * @returns {SVGElement[]} */
  marks() {
    const { viewport } = this;
    const { width, height } = viewport;
    /** @type {import("../axes.js").Label[]} */ const labels = [];
    const parts = [];
    for (const { data, value, viewport: own } of overlayOf(this).sides) {
      if (!data) continue;
      const { peak, live } = data.spans;
      const place = own.axis === "event" ? peak + 0.5 : own.placeOf(peak);
      const [x, y] = [viewport.xOf(viewport.fromShared(own.toShared(place))), viewport.yOf(live[peak])];
      if (!viewport.isHeightInSight(live[peak])) continue;
      labels.push([y, "", `${value?.badge} ${bytesText(live[peak])}`]);
      if (x < 0 || x > width) continue;
      parts.push(peakMark(x, y), shape("text", { x, y: y - 12, class: "mvt-letter" }, value?.badge));
    }
    const words = spread(labels, height).map(([y, , text]) => shape("text", { x: width + 8, y: y + 4, class: "mvt-figure mvt-right" }, text));
    return [...parts, ...words];
  }
}

class Pointing extends Interaction {
  /** @param {PointerEvent} event */
  hover(event) {
    const { sides, canvas } = overlayOf(this);
    const lines = canvas instanceof Lines ? canvas.lines : [];
    if (!lines.length || this.isDragging || event.pointerType === "touch") return;
    const at = this.local(event);
    this.timeline.sayRuler(this.viewport.bytesAt(at.y));
    const x = clamp(Math.floor(at.x), 0, this.viewport.width - 1);
    const words = sides.map((side, i) => el("div", {}, el("b", {}, side.value?.badge || ""), ` ${changeWords(lines[i][x], i ? lines[0][x] : NaN)}`));
    showTip(this.tip, at, this.viewport, words);
  }

  click() {}
}

/** @param {number} bytes @param {number} baseline NaN for none */
export function changeWords(bytes, baseline) {
  if (!(bytes >= 0)) return "nothing here";
  if (!(baseline >= 0) || bytes === baseline) return bytesText(bytes);
  return `${bytesText(bytes)}, ${deltaText(bytes - baseline)}`;
}

export const mount = mounting(Overlay);
