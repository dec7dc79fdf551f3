// @ts-check
// Every allocation as pixels, what is reserved above them hatched, and which allocation a pixel shows.
import { clamp, el, isDark, pixelOf, pixelRatio } from "../base.js";
import { columnInstants, columnInstantsByTime, paint } from "./raster.js";
import { Part } from "./viewport.js";

const MOST_COLUMNS = 2400;
const MOVING_MS = 7;
const SHARES = [1, 1 / 2, 1 / 3];
const HATCH_PERIOD = 5;
const NONE = -1;

/** @import { Viewport } from "./viewport.js" */
/** @import { Point } from "../base.js" */

/** The instant that each column of a stretch of the axis shows.
 * @param {import("./spans.js").Spans} spans @param {Viewport} viewport @param {{ first: number, last: number, columns: number }} stretch */
export function instantsOf(spans, viewport, stretch) {
  const times = viewport.known();
  return times ? columnInstantsByTime(spans, times, stretch) : columnInstants(spans, stretch);
}

export class PlotCanvas extends Part {
  node = el("canvas", { class: "mvt-canvas", "aria-hidden": "true" });
  /** Where the trace begins in the plot, and how much of it that takes. */
  left = 0;
  wide = 0;
  /** What each column shows. */
  instants = new Int32Array(0);
  columns = 1;
  rows = 1;
  /** Which allocation each pixel shows, from the lowest row. */
  grid = new Int32Array(0);
  image = new ImageData(1, 1);
  /** Whether each group of the colours is in sight, as of the last full picture. */
  seen = new Uint8Array(0);
  /** Of the columns, that there is time for while a gesture runs. */
  share = 1;

  /** While a gesture runs, a crowded picture is drawn in as many columns as there is time for; once it rests, in full.
   * @param {boolean} isSharp */
  draw(isSharp) {
    const { data, viewport } = this;
    const scale = isSharp ? pixelRatio() : 1;
    this.measure(isSharp ? scale : this.share, scale);
    const started = performance.now();
    const own = viewport.own();
    const view = { first: Math.max(viewport.first, own.first), last: Math.min(viewport.last, own.last), columns: this.columns, rows: this.rows, bottom: viewport.bottom, top: viewport.top };
    this.instants = instantsOf(data.spans, viewport, view);
    const pixels = new Uint32Array(this.image.data.buffer);
    const { order, lit } = this.timeline;
    paint(data.spans, this.instants, view, this.colours(), { byGroup: order !== "age", lit, grid: this.grid, pixels });
    this.hatch(pixels, scale);
    const { node, image } = this;
    Object.assign(node.style, { left: `${this.left}px`, width: `${this.wide}px` });
    if (node.width !== image.width || node.height !== image.height) Object.assign(node, { width: image.width, height: image.height });
    node.getContext("2d")?.putImageData(image, 0, 0);
    if (isSharp || this.seen.length !== data.labels.length) {
      this.seen = new Uint8Array(data.labels.length);
      for (const row of this.grid) if (row >= 0) this.seen[data.group[row]] = 1;
    }
    const possible = (MOVING_MS * this.columns) / (this.wide * (performance.now() - started));
    this.share = SHARES.find((share) => share <= possible) || SHARES[SHARES.length - 1];
  }

  /** @param {number} perPixel columns @param {number} scale */
  measure(perPixel, scale) {
    const { viewport } = this;
    const own = viewport.own();
    this.left = clamp(viewport.xOf(own.first), 0, viewport.width);
    this.wide = Math.max(clamp(viewport.xOf(own.last), 0, viewport.width) - this.left, 0);
    this.columns = clamp(Math.round(this.wide * perPixel), 1, MOST_COLUMNS);
    this.rows = Math.max(Math.round(viewport.height * scale), 1);
    if (this.grid.length && this.image.width === this.columns && this.image.height === this.rows) return;
    this.grid = new Int32Array(this.rows * this.columns);
    this.image = new ImageData(this.columns, this.rows);
  }

  colours() {
    const { data } = this;
    const mode = isDark() ? "dark" : "light";
    const page = pixelOf(this.timeline.colour("--mv-bg"));
    return { group: data.group, groups: data.labels.length, palette: data.palettes[mode], dimmed: data.palettes[`${mode}_dimmed`], page };
  }

  /** Reserved and not live: thin diagonal lines between the top of the stack and the reserved line.
   * @param {Uint32Array} pixels @param {number} scale */
  hatch(pixels, scale) {
    const { columns, rows } = this;
    const { spans } = this.data;
    const { bottom, top } = this.viewport;
    const rowOf = (/** @type {number} */ bytes) => clamp(((bytes - bottom) / (top - bottom)) * rows, 0, rows);
    const line = pixelOf(this.timeline.colour("--mv-hatch"));
    const period = Math.round(HATCH_PERIOD * scale);
    const thick = Math.max(Math.round(scale), 1);
    for (let c = 0; c < columns; c++) {
      const upto = Math.round(rowOf(spans.reservedUpTo(this.instants[c])));
      const from = Math.ceil(rowOf(spans.live[this.instants[c]]));
      for (let t = 0; t < thick; t++) {
        for (let r = from + ((((c + t - from) % period) + period) % period); r < upto; r += period) pixels[(rows - 1 - r) * columns + c] = line;
      }
    }
  }

  // -- what a pixel shows

  /** @param {number} x */
  columnAt(x) {
    return clamp(Math.floor(((x - this.left) / this.wide) * this.columns), 0, this.columns - 1);
  }

  /** The allocation at a point; -1 for none. @param {Point} at */
  rowAt({ x, y }) {
    const column = Math.floor(((x - this.left) / this.wide) * this.columns);
    const row = Math.floor((1 - y / this.viewport.height) * this.rows);
    if (!(column >= 0) || column >= this.columns || row < 0 || row >= this.rows) return NONE;
    return this.grid[row * this.columns + column];
  }

  bytesPerPixel() {
    const { bottom, top } = this.viewport;
    return (top - bottom) / this.rows;
  }

  /** How many allocations share the pixel at a point, and their bytes together.
   * @param {Point} at @returns {{ count: number, bytes: number }} */
  insidePixel({ x, y }) {
    const { data } = this;
    const high = this.bytesPerPixel();
    const { bottom, height } = this.viewport;
    const low = bottom + Math.floor((1 - y / height) * this.rows) * high;
    let [sum, count, bytes] = [0, 0, 0];
    for (const row of data.stackAt(this.instants[this.columnAt(x)], this.timeline.order !== "age")) {
      const upper = sum + data.spans.size[row];
      if (upper > low && sum < low + high) {
        count++;
        bytes += data.spans.size[row];
      }
      sum = upper;
      if (sum >= low + high) break;
    }
    return { count, bytes };
  }

  /** An allocation's outline, from the columns where it can be seen; "" where it cannot.
   * @param {number} row */
  outlineOf(row) {
    const { spans } = this.data;
    const [wide, high] = [this.wide / this.columns, this.viewport.height / this.rows];
    const pieces = [];
    let upper = "";
    let lower = "";
    for (let c = 0; c <= this.columns; c++) {
      const isLive = c < this.columns && spans.start[row] <= this.instants[c] && this.instants[c] < spans.end[row];
      const seen = isLive ? this.stretchOf(row, c) : null;
      if (!seen) {
        if (upper) pieces.push(`M${upper.slice(1)}${lower}Z`);
        upper = lower = "";
        continue;
      }
      const [left, right] = [(this.left + c * wide).toFixed(1), (this.left + (c + 1) * wide).toFixed(1)];
      const [top, bottom] = [((this.rows - seen.high) * high).toFixed(1), ((this.rows - seen.low) * high).toFixed(1)];
      upper += `L${left},${top}L${right},${top}`;
      lower = `L${right},${bottom}L${left},${bottom}${lower}`;
    }
    return pieces.join("");
  }

  /** The rows of a column that show an allocation; null where none does.
   * @param {number} row @param {number} column */
  stretchOf(row, column) {
    let low = NONE;
    for (let r = 0; r < this.rows; r++) {
      const isHere = this.grid[r * this.columns + column] === row;
      if (isHere && low < 0) low = r;
      else if (!isHere && low >= 0) return { low, high: r };
    }
    return low < 0 ? null : { low, high: this.rows };
  }
}
