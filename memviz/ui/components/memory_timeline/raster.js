// @ts-check
// The memory timeline as pixels, in the browser. memviz/figures/raster.py is the same in Python and says why;
// tests/browser/test_raster.py holds one to the other, pixel by pixel. No DOM in this file.
import { lastNotAfter, Stack } from "./spans.js";

const NOTHING = -1;
export const SHADES = 5;
/** @typedef {import("./spans.js").Spans} Spans */
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

/** @param {View} view */
function centres({ rows, bottom, top }) {
  const made = new Float64Array(rows);
  for (let r = 0; r < rows; r++) made[r] = bottom + (r + 0.5) * ((top - bottom) / rows);
  return made;
}

/** @param {number} row */
export function shadeOf(row) {
  return (Math.imul(row, HASH) >>> 0) % SHADES;
}

/** What a column's pixels depend on beside its instant.
 * @typedef {{ spans: Spans, byGroup: boolean, lit: ArrayLike<number> | null } & Pick<Colours, "group" | "palette" | "dimmed" | "page"> & Pick<View, "rows" | "bottom" | "top">} Looks */

/** The picture before, upright: zoomed or moved along the axis, most columns of the next one show instants that it shows. */
export class LastPicture {
  /** @type {Looks | null} */
  looks = null;
  /** @type {ArrayLike<number>} */
  instants = [];
  /** @type {Strip} */
  upright = { grid: new Int32Array(0), pixels: new Uint32Array(0) };
  /** @type {Strip} */
  spare = { grid: new Int32Array(0), pixels: new Uint32Array(0) };

  /** Makes room for the next picture, and says which instants the one before has that looks the same.
   * @param {Looks} looks @param {ArrayLike<number>} instants */
  turnTo(looks, instants) {
    const was = this.looks;
    const isAlike = was !== null && Object.entries(looks).every(([name, value]) => was[/** @type {keyof Looks} */ (name)] === value);
    const before = isAlike ? this.instants : [];
    const size = instants.length * looks.rows;
    [this.spare, this.upright] = [this.upright, this.spare.grid.length === size ? this.spare : { grid: new Int32Array(size), pixels: new Uint32Array(size) }];
    Object.assign(this, { looks, instants: Int32Array.from(instants) });
    return before;
  }
}

/**
 * Fills grid (rows from the bottom, NOTHING above the stack) and pixels (0xAABBGGRR, top row first). `lit`: rows that
 * keep their colour while the others are dimmed, or null. `last` is what the call before was given.
 * @param {Spans} spans @param {ArrayLike<number>} instants @param {View} view @param {Colours} colours
 * @param {{ byGroup?: boolean, lit?: ArrayLike<number> | null, last?: LastPicture } & Strip} options
 */
export function paint(spans, instants, view, colours, { byGroup = true, lit = null, last = new LastPicture(), grid, pixels }) {
  const { columns, rows, bottom, top } = view;
  const { group, palette, dimmed, page } = colours;
  const middle = centres(view);
  const stack = new Stack(byGroup ? colours.groups : 1);
  const before = last.turnTo({ spans, byGroup, lit, group, palette, dimmed, page, rows, bottom, top }, instants);
  const { upright, spare } = last;
  let old = 0;
  // Columns are painted upright and laid down side by side, some at a time: writing each of a column's pixels to
  // its own line of the picture would miss the processor's cache every time.
  for (let first = 0; first < columns; first += STRIP) {
    const wide = Math.min(STRIP, columns - first);
    for (let c = first; c < first + wide; c++) {
      while (old < before.length && before[old] < instants[c]) old++;
      if (c && instants[c] === instants[c - 1]) copyColumn(upright, c - 1, upright, c, rows);
      else if (before[old] === instants[c]) copyColumn(spare, old, upright, c, rows);
      else {
        stack.moveTo(spans, group, instants[c], byGroup);
        paintColumn(stack, middle, colours, lit, upright, c * rows);
      }
    }
    layDown(upright, first, wide, view, grid, pixels);
  }
}

/** @param {Strip} from @param {number} there @param {Strip} to @param {number} here @param {number} rows */
function copyColumn(from, there, to, here, rows) {
  to.grid.set(from.grid.subarray(there * rows, (there + 1) * rows), here * rows);
  to.pixels.set(from.pixels.subarray(there * rows, (there + 1) * rows), here * rows);
}

/** One column from the bottom up, at `base` of what stands upright.
 * @param {Stack} stack @param {Float64Array} middle @param {Colours} colours @param {ArrayLike<number> | null} lit @param {Strip} upright @param {number} base */
function paintColumn(stack, middle, { group, palette, dimmed, page }, lit, upright, base) {
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
        upright.grid[base + r] = row;
        upright.pixels[base + r] = table[colour];
      }
      const high = r - from;
      // The uppermost pixel of an allocation over 2 pixels high is its edge, fainter up to 4.
      if (high > 2) upright.pixels[base + r - 1] = table[colour + (high > 4 ? 2 : 1)];
    }
  }
  upright.grid.fill(NOTHING, base + r, base + rows);
  upright.pixels.fill(page, base + r, base + rows);
}

/** @param {Strip} upright @param {number} first @param {number} wide @param {View} view @param {Int32Array} grid @param {Uint32Array} pixels */
function layDown(upright, first, wide, { columns, rows }, grid, pixels) {
  for (let r = 0; r < rows; r++) {
    const below = r * columns + first;
    const above = (rows - 1 - r) * columns + first;
    const from = first * rows + r;
    for (let k = 0; k < wide; k++) {
      grid[below + k] = upright.grid[from + k * rows];
      pixels[above + k] = upright.pixels[from + k * rows];
    }
  }
}
