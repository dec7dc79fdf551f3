// @ts-check
// The first picture of a trace that is still being read: its total, in grey, where every allocation will stand. It has
// the axes of the timeline to come, so that colours fill it and nothing moves.
import { byteRules, groundLine, sideLabels, steppedPath } from "../axes.js";
import { penOf, shape } from "../base.js";
import { bytesText } from "../words.js";
import { OVERVIEW, OVERVIEW_ROOM } from "./overview.js";
import { Part } from "./viewport.js";

/** @import { MemoryTimeline } from "./timeline.js" */

const SHADE = 0.4;
export const HEADROOM = 1.06;

/** Most live bytes per column, the share of the width that they take, and what is known once the file is whole.
 * @typedef {{ live: number[], share: number, words: string, key?: string, reserved?: number[], events?: number, peak_bytes: number, reserved_bytes?: number }} Total */

/** @param {MemoryTimeline} timeline @param {Total} total */
export function drawTotal(timeline, total) {
  const { plot, canvas, labels, overview, phases, legend, root } = timeline;
  const size = { width: Math.floor(plot.clientWidth), height: Math.floor(plot.clientHeight) };
  const { width, height } = size;
  if (!width || !height || !total.live.length) return;
  const most = total.live.reduce((a, b) => Math.max(a, b), 1);
  const top = Math.max(total.reserved_bytes || 0, most) * HEADROOM;
  const share = total.reserved ? 1 : total.share;
  phases.node.hidden = false;
  phases.node.replaceChildren();
  legend.clear();
  Object.assign(canvas.node.style, { left: "0px", width: `${width}px` });
  const grey = timeline.colour("--mv-ink-3");
  silhouette(canvas.node, size, total.live, share, top, { colour: grey, shade: SHADE });
  const strip = { width: overview.canvas.clientWidth, height: OVERVIEW };
  silhouette(overview.canvas, strip, total.live, share, (most * OVERVIEW) / (OVERVIEW - OVERVIEW_ROOM), { colour: grey, shade: 1 });
  const yOf = (/** @type {number} */ bytes) => height * (1 - bytes / top);
  // Before the first bytes there is nothing to measure.
  const rules = most > 1 ? byteRules(top, size, yOf) : [];
  labels.node.setAttribute("viewBox", `0 0 ${width} ${height}`);
  labels.node.replaceChildren(...rules, groundLine(size));
  if (total.reserved) {
    const { reserved, peak_bytes: peak } = total;
    const path = steppedPath(reserved.length, (column) => (column * width) / reserved.length, (column) => yOf(reserved[column]));
    labels.node.append(shape("path", { d: path, class: "mvt-reserved" }), ...sideLabels([[yOf(peak), bytesText(peak), "live, peak"]], size));
  }
  root.dataset.total = total.reserved ? "whole" : most > 1 ? "part" : "none";
}

/** @param {HTMLCanvasElement} canvas @param {{ width: number, height: number }} size @param {number[]} values
 * @param {number} share of the width @param {number} top bytes at the upper edge @param {{ colour: string, shade: number }} look */
function silhouette(canvas, { width, height }, values, share, top, { colour, shade }) {
  const pen = penOf(canvas, { width, height });
  pen.fillStyle = colour;
  pen.globalAlpha = shade;
  const columns = mostPerColumn(values, Math.max(Math.round(width * share), 1));
  pen.beginPath();
  pen.moveTo(0, height);
  columns.forEach((most, x) => {
    const y = height * (1 - most / top);
    pen.lineTo(x, y);
    pen.lineTo(x + 1, y);
  });
  pen.lineTo(columns.length, height);
  pen.fill();
}

/** The highest value that falls into each of `count` columns; where there are fewer values, each fills several.
 * @param {number[]} values @param {number} count */
export function mostPerColumn(values, count) {
  return Array.from({ length: count }, (_, column) => {
    const end = Math.max(Math.ceil(((column + 1) * values.length) / count), 1);
    let most = 0;
    for (let i = Math.floor((column * values.length) / count); i < end; i++) most = Math.max(most, values[i]);
    return most;
  });
}

const MOST_PATIENCE_MS = 3000;

export class Reading extends Part {
  /** @type {Total | null} */ total = null;

  /** @param {Total} total */
  show(total) {
    const { timeline } = this;
    timeline.attach();
    timeline.close();
    this.total = total;
    timeline.root.hidden = false;
    timeline.root.classList.remove("mvt-plain");
    timeline.title.hidden = true;
    timeline.root.dataset.total = "";
    delete timeline.root.dataset.drawn;
    timeline.waiting.textContent = total.words;
    timeline.schedule();
  }

  /** The timeline itself is there. */
  over() {
    this.total = null;
    delete this.timeline.root.dataset.total;
  }

  end() {
    if (!this.total) return;
    this.over();
    this.timeline.load(null);
  }

  /** Resolves when this trace's allocations are on the screen, or some time later anyhow.
   * @param {string} key @returns {Promise<void>} */
  drawnOf(key) {
    const { timeline } = this;
    const begun = performance.now();
    return new Promise((done) => {
      const look = () => {
        const isDrawn = timeline.value?.key === key && timeline.root.dataset.drawn;
        if (isDrawn || performance.now() - begun > MOST_PATIENCE_MS) requestAnimationFrame(() => setTimeout(done));
        else setTimeout(look, 10);
      };
      look();
    });
  }
}
