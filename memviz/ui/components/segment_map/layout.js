// @ts-check
// Where segments lie on the map, and which tile each pixel shows. No DOM in this file.
//
// Rows have one constant length in bytes, so area is bytes. A segment starts in the row at hand if it fits there, else
// in the next one; only one that is longer than a row goes on over several. Each group begins a row of its own.

export const MOST_ROWS = 200;
const FEWEST_ROWS = 6;
const KIB = 1024;
const MIB = KIB * KIB;
const SLACK = 1e-6;

/** @typedef {ArrayLike<number>} Numbers */
/** Parts of segments, one behind the other: part `start` to `start + length` of a segment, `from` bytes into a row.
 * @typedef {{ segment: number[], row: number[], from: number[], start: number[], length: number[] }} Pieces */
/** @typedef {{ pieces: Pieces, heads: { group: number, row: number }[], firstPiece: Map<number, number>, rows: number, rowBytes: number }} Layout */
/** What tiles the segments: `first` says with which tile each of them begins.
 * @typedef {{ first: Numbers, segment: Numbers, offset: Numbers, size: Numbers }} Tiles */

/** Powers of two, and multiples of the 20 MiB that the allocator takes at a time.
 * @param {number} total */
export function rowLengths(total) {
  const lengths = [];
  for (let size = KIB; size < 2 * total || size === KIB; size *= 2) lengths.push(size);
  for (let size = 20 * MIB; size < 2 * total; size *= 2) lengths.push(size);
  return lengths.sort((a, b) => a - b);
}

/** `sizes` of segments and their `group`, in the `order` in which they are drawn.
 * @param {Numbers} sizes @param {Numbers} group @param {number[]} order @param {number} rowBytes @returns {Layout} */
export function shelve(sizes, group, order, rowBytes) {
  /** @type {Pieces} */
  const pieces = { segment: [], row: [], from: [], start: [], length: [] };
  /** @type {Layout["firstPiece"]} */
  const firstPiece = new Map();
  /** @type {Layout["heads"]} */
  const heads = [];
  let [row, at, last] = [-1, 0, -1];
  const add = (/** @type {number} */ segment, /** @type {number} */ start, /** @type {number} */ length) => {
    pieces.segment.push(segment);
    pieces.row.push(row);
    pieces.from.push(at);
    pieces.start.push(start);
    pieces.length.push(length);
    at += length;
  };
  const nextRow = () => {
    row++;
    at = 0;
  };
  for (const segment of order) {
    const size = sizes[segment];
    if (group[segment] !== last) {
      last = group[segment];
      heads.push({ group: last, row: row + 1 });
      nextRow();
    } else if (at > 0 && at + size > rowBytes) nextRow();
    firstPiece.set(segment, pieces.segment.length);
    for (let start = 0; start < size; ) {
      if (at >= rowBytes) nextRow();
      const length = Math.min(size - start, rowBytes - at);
      add(segment, start, length);
      start += length;
    }
  }
  return { pieces, heads, firstPiece, rows: row + 1, rowBytes };
}

/** The length whose rows are best filled, with more rows where a pixel would else hide small blocks.
 * @param {Float64Array | number[]} sizes @param {Numbers} group @param {number[]} order @param {number} width @returns {number} */
export function chooseRowLength(sizes, group, order, width) {
  const total = sum(sizes);
  const target = Math.min(Math.max(Math.round(total / (width * 256 * KIB)), 16), 48);
  /** @type {{ length: number, fill: number, isEnough: boolean } | null} */
  let best = null;
  for (const length of rowLengths(total)) {
    if (total / length > MOST_ROWS) continue;
    const { rows } = shelve(sizes, group, order, length);
    if (rows > target) continue;
    const fill = total / (rows * length);
    const isEnough = rows >= FEWEST_ROWS;
    // Shorter rows come first, so at an equal fill more rows win.
    if (!best || (isEnough && fill > best.fill + 0.02) || (!best.isEnough && isEnough)) best = { length, fill, isEnough };
  }
  return best ? best.length : rowLengths(total)[rowLengths(total).length - 1];
}

/** As shelve, with rows made longer until there are few enough to draw.
 * @param {Numbers} sizes @param {Numbers} group @param {number[]} order @param {number} rowBytes */
export function shelveWithin(sizes, group, order, rowBytes) {
  let made = shelve(sizes, group, order, rowBytes);
  while (made.rows > MOST_ROWS && made.rows > made.heads.length) made = shelve(sizes, group, order, made.rowBytes * 2);
  return made;
}

/** For each pixel of each row the tile that covers most of it; -1 where no segment is.
 * @param {Layout} layout @param {Tiles} tiles @param {number} width */
export function owners(layout, tiles, width) {
  const { pieces, rows, rowBytes } = layout;
  const grid = new Int32Array(rows * width).fill(-1);
  const covered = new Float32Array(rows * width);
  const scale = width / rowBytes;
  for (let i = 0; i < pieces.segment.length; i++) {
    const base = pieces.row[i] * width;
    const [begin, end] = [pieces.start[i], pieces.start[i] + pieces.length[i]];
    for (let t = tileAt(tiles, pieces.segment[i], begin); t < tiles.first[pieces.segment[i] + 1] && tiles.offset[t] < end; t++) {
      const low = (pieces.from[i] + Math.max(tiles.offset[t], begin) - begin) * scale;
      const high = (pieces.from[i] + Math.min(tiles.offset[t] + tiles.size[t], end) - begin) * scale;
      claim(grid, covered, base, width, low, high, t);
    }
  }
  return grid;
}

/** A tile takes the pixels from `low` to `high` of which it covers more than any did before.
 * @param {Int32Array} grid @param {Float32Array} covered @param {number} base @param {number} width @param {number} low @param {number} high @param {number} tile */
function claim(grid, covered, base, width, low, high, tile) {
  const first = Math.floor(low + SLACK);
  const last = Math.min(Math.ceil(high - SLACK), width);
  for (let x = first; x < last; x++) {
    const share = Math.min(x + 1, high) - Math.max(x, low);
    if (share > covered[base + x]) {
      covered[base + x] = share;
      grid[base + x] = tile;
    }
  }
}

/** The tile of a segment that holds this byte of it.
 * @param {Tiles} tiles @param {number} segment @param {number} offset */
function tileAt(tiles, segment, offset) {
  let [low, high] = [tiles.first[segment], tiles.first[segment + 1] - 1];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (tiles.offset[middle] <= offset) low = middle;
    else high = middle - 1;
  }
  return low;
}

/** Where a tile lies: a stretch of one row, or of several.
 * @param {Layout} layout @param {Tiles} tiles @param {number} tile */
export function placesOf(layout, tiles, tile) {
  const { pieces, firstPiece } = layout;
  const segment = tiles.segment[tile];
  const [begin, end] = [tiles.offset[tile], tiles.offset[tile] + tiles.size[tile]];
  const places = [];
  for (let i = firstPiece.get(segment) ?? pieces.segment.length; i < pieces.segment.length && pieces.segment[i] === segment; i++) {
    const low = Math.max(pieces.start[i], begin);
    const high = Math.min(pieces.start[i] + pieces.length[i], end);
    if (high <= low) continue;
    const from = pieces.from[i] + low - pieces.start[i];
    places.push({ row: pieces.row[i], from, to: from + high - low });
  }
  return places;
}

/** The tiles that touch a stretch of one row.
 * @param {Layout} layout @param {Tiles} tiles @param {number} row @param {number} from @param {number} to */
export function tilesIn(layout, tiles, row, from, to) {
  const { pieces } = layout;
  const touched = [];
  for (let i = 0; i < pieces.segment.length; i++) {
    if (pieces.row[i] !== row || pieces.from[i] >= to || pieces.from[i] + pieces.length[i] <= from) continue;
    const begin = pieces.start[i] + Math.max(from - pieces.from[i], 0);
    const end = pieces.start[i] + Math.min(to - pieces.from[i], pieces.length[i]);
    const segment = pieces.segment[i];
    for (let t = tileAt(tiles, segment, begin); t < tiles.first[segment + 1] && tiles.offset[t] < end; t++) touched.push(t);
  }
  return touched;
}

/** Groups stay together; within each, the largest first or as the addresses run.
 * @param {Numbers} sizes @param {Numbers} group @param {string} by */
export function drawingOrder(sizes, group, by) {
  const order = Array.from(sizes, (_, i) => i);
  return order.sort((a, b) => group[a] - group[b] || (by === "size" ? sizes[b] - sizes[a] : 0) || a - b);
}

/** @param {Float64Array | number[]} sizes */
export const sum = (sizes) => Array.from(sizes).reduce((a, b) => a + b, 0);
