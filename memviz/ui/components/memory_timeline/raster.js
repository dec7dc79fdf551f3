// @ts-check
// The memory timeline as pixels, in the browser. memviz/figures/raster.py is the same in Python and says why;
// tests/browser/test_raster.py holds one to the other, pixel by pixel. No DOM in this file.
import { lastNotAfter, Stack } from "./spans.js";

const NOTHING = -1;
export const SHADES = 5;
/** @import { Spans } from "./spans.js" */
/** What is looked at: instants or µs `first` to `last` in so many columns, and bytes `bottom` to `top` in so many rows.
 * @typedef {{ first: number, last: number, columns: number, rows: number, bottom: number, top: number }} View */
/** Palettes are flat [group][shade][edge].
 * @typedef {{ group: ArrayLike<number>, groups: number, palette: ArrayLike<number>, dimmed: ArrayLike<number>, page: number }} Colours */
/** @typedef {{ grid: Int32Array, pixels: Uint32Array }} Strip */
const HASH = 0x9e3779b1;
const STRIP = 16;

/** The instant each column shows: the first of its range with most live bytes.
 * @param {Spans} spans @param {Pick<View, "first" | "last" | "columns">} view */
export function columnInstants(spans, view) {
  const made = new Int32Array(view.columns);
  const step = (view.last - view.first) / view.columns;
  const last = spans.instants - 1;
  for (let c = 0; c < view.columns; c++) {
    const begin = Math.min(Math.max(Math.floor(view.first + c * step), 0), last);
    const next = Math.max(Math.floor(view.first + (c + 1) * step), begin + 1);
    made[c] = spans.largestIn(begin, Math.min(Math.max(next, 1), last + 1));
  }
  return made;
}

/** The same for equal spans of time; `times` has one entry per event. A column without events keeps the state before.
 * @param {Spans} spans @param {ArrayLike<number>} times @param {Pick<View, "first" | "last" | "columns">} view */
export function columnInstantsByTime(spans, times, view) {
  const made = new Int32Array(view.columns);
  const step = (view.last - view.first) / view.columns;
  let begin = lastNotAfter(times, view.first) + 1;
  for (let c = 0; c < view.columns; c++) {
    const end = lastNotAfter(times, view.first + (c + 1) * step) + 1;
    made[c] = spans.largestIn(begin, Math.max(end, begin) + 1);
    begin = end;
  }
  return made;
}

/** @param {number} row */
export function shadeOf(row) {
  return (Math.imul(row, HASH) >>> 0) % SHADES;
}

/**
 * Fills grid (rows from the bottom, NOTHING above the stack) and pixels (0xAABBGGRR, top row first). `lit`: rows that
 * keep their colour while the others are dimmed, or null.
 * @param {Spans} spans @param {ArrayLike<number>} instants @param {View} view @param {Colours} colours
 * @param {{ byGroup?: boolean, lit?: ArrayLike<number> | null } & Strip} options
 */
export function paint(spans, instants, view, colours, { byGroup = true, lit = null, grid, pixels }) {
  const { columns, rows, bottom, top } = view;
  const middle = Float64Array.from({ length: rows }, (_, r) => bottom + (r + 0.5) * ((top - bottom) / rows));
  const stack = new Stack(byGroup ? colours.groups : 1);
  // Columns are painted upright into a strip and laid down side by side: writing each of a column's pixels to
  // its own line of the picture would miss the processor's cache every time.
  const strip = { grid: new Int32Array(STRIP * rows), pixels: new Uint32Array(STRIP * rows) };
  for (let first = 0; first < columns; first += STRIP) {
    const wide = Math.min(STRIP, columns - first);
    strip.grid.fill(NOTHING);
    strip.pixels.fill(colours.page);
    for (let k = 0; k < wide; k++) {
      stack.moveTo(spans, colours.group, instants[first + k], byGroup);
      paintColumn(stack, middle, colours, lit, strip, k * rows);
    }
    layDown(strip, first, wide, view, grid, pixels);
  }
}

/** One column from the bottom up, at `base` of the strip.
 * @param {Stack} stack @param {Float64Array} middle @param {Colours} colours @param {ArrayLike<number> | null} lit @param {Strip} strip @param {number} base */
function paintColumn(stack, middle, { group, palette, dimmed }, lit, strip, base) {
  const rows = middle.length;
  let sum = 0;
  let r = 0;
  for (let g = 0; g < stack.lists.length && r < rows; g++) {
    const list = stack.lists[g];
    const sizes = stack.sizes[g];
    for (let i = 0, n = stack.counts[g]; i < n && r < rows; i++) {
      sum += sizes[i];
      if (middle[r] >= sum) continue;
      const row = list[i];
      const table = lit === null || lit[row] ? palette : dimmed;
      const colour = (group[row] * SHADES + shadeOf(row)) * 3;
      const from = r;
      for (; r < rows && middle[r] < sum; r++) {
        strip.grid[base + r] = row;
        strip.pixels[base + r] = table[colour];
      }
      const high = r - from;
      // The uppermost pixel of an allocation over 2 pixels high is its edge, fainter up to 4.
      if (high > 2) strip.pixels[base + r - 1] = table[colour + (high > 4 ? 2 : 1)];
    }
  }
}

/** @param {Strip} strip @param {number} first @param {number} wide @param {View} view @param {Int32Array} grid @param {Uint32Array} pixels */
function layDown(strip, first, wide, { columns, rows }, grid, pixels) {
  for (let r = 0; r < rows; r++) {
    const below = r * columns + first;
    const above = (rows - 1 - r) * columns + first;
    for (let k = 0; k < wide; k++) {
      grid[below + k] = strip.grid[k * rows + r];
      pixels[above + k] = strip.pixels[k * rows + r];
    }
  }
}
