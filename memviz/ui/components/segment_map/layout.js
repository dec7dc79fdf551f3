// @ts-check
// The allocator's map at one moment: its segments, the tiles that fill them, where they lie and which each pixel shows. No
// DOM in this file.
//
// Rows have one constant length in bytes, so area is bytes. A segment starts in the row at hand if it fits there, else
// in the next one; only one that is longer than a row goes on over several. Each group begins a row of its own.
import { palettesOf } from "../base.js";
import { bytesOf, unpack } from "../memory_timeline/packed.js";
import { lastNotAfter, wide } from "../memory_timeline/spans.js";
import { bytesText, durationText, eventText, grouped } from "../words.js";

export const MOST_ROWS = 200;
const FEWEST_ROWS = 6;
const KIB = 1024;
const MIB = KIB * KIB;
const SLACK = 1e-6;

/** @typedef {ArrayLike<number>} Numbers */
/** Part `start` to `start + length` of a segment, `from` bytes into a row.
 * @typedef {{ segment: number, row: number, from: number, start: number, length: number }} Piece */
/** `pieces` by segment, in the order in which they are drawn.
 * @typedef {{ pieces: Map<number, Piece[]>, heads: { group: number, row: number }[], rows: number, rowBytes: number }} Layout */

/** Powers of two, and multiples of the 20 MiB that the allocator takes at a time. @param {number} total */
export function rowLengths(total) {
  const lengths = [];
  for (let size = KIB; size < 2 * total || size === KIB; size *= 2) lengths.push(size);
  for (let size = 20 * MIB; size < 2 * total; size *= 2) lengths.push(size);
  return lengths.sort((a, b) => a - b);
}

/** `sizes` of segments and their `group`, in the `order` in which they are drawn.
 * @param {Numbers} sizes @param {Numbers} group @param {number[]} order @param {number} rowBytes @returns {Layout} */
export function shelve(sizes, group, order, rowBytes) {
  /** @type {Layout["pieces"]} */ const pieces = new Map();
  /** @type {Layout["heads"]} */ const heads = [];
  let [row, at, last] = [-1, 0, -1];
  const nextRow = () => ([row, at] = [row + 1, 0]);
  for (const segment of order) {
    const size = sizes[segment];
    if (group[segment] !== last) {
      last = group[segment];
      heads.push({ group: last, row: row + 1 });
      nextRow();
    } else if (at > 0 && at + size > rowBytes) nextRow();
    const parts = [];
    for (let start = 0; start < size; start += parts[parts.length - 1].length) {
      if (at >= rowBytes) nextRow();
      const length = Math.min(size - start, rowBytes - at);
      parts.push({ segment, row, from: at, start, length });
      at += length;
    }
    pieces.set(segment, parts);
  }
  return { pieces, heads, rows: row + 1, rowBytes };
}

/** The length whose rows are best filled, with more rows where a pixel would else hide small blocks.
 * @param {Float64Array | number[]} sizes @param {Numbers} group @param {number[]} order @param {number} width @returns {number} */
export function chooseRowLength(sizes, group, order, width) {
  const total = sum(sizes);
  const target = Math.min(Math.max(Math.round(total / (width * 256 * KIB)), 16), 48);
  /** @type {{ length: number, fill: number, isEnough: boolean } | null} */ let best = null;
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
  for (const { segment, row, from, start, length } of [...pieces.values()].flat()) {
    for (let t = tileAt(tiles, segment, start); t < tiles.first[segment + 1] && tiles.offset[t] < start + length; t++) {
      const low = (from + Math.max(tiles.offset[t] - start, 0)) * scale;
      const high = (from + Math.min(tiles.offset[t] + tiles.size[t] - start, length)) * scale;
      claim(grid, covered, row * width, width, low, high, t);
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

/** @param {Tiles} tiles @param {number} segment @param {number} offset */
const tileAt = (tiles, segment, offset) => lastNotAfter(tiles.offset, offset, tiles.first[segment], tiles.first[segment + 1]);

/** @param {Layout} layout @param {Tiles} tiles @param {number} tile */
export function placesOf(layout, tiles, tile) {
  const places = [];
  for (const { row, from, start, length } of layout.pieces.get(tiles.segment[tile]) || []) {
    const low = Math.max(tiles.offset[tile] - start, 0);
    const high = Math.min(tiles.offset[tile] + tiles.size[tile] - start, length);
    if (high > low) places.push({ row, from: from + low, to: from + high });
  }
  return places;
}

/** @param {Layout} layout @param {Tiles} tiles @param {number} row @param {number} from @param {number} to */
export function tilesIn(layout, tiles, row, from, to) {
  const touched = [];
  for (const piece of [...layout.pieces.values()].flat()) {
    if (piece.row !== row || piece.from >= to || piece.from + piece.length <= from) continue;
    const { segment, start, length } = piece;
    const begin = start + Math.max(from - piece.from, 0);
    const end = start + Math.min(to - piece.from, length);
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

// What a tile is.
export const FREE = 0;
export const LIVE = 1;
export const WAITING = 2;
const LARGE_POOL = 1;
const EXPANDABLE = 2;

/** @typedef {{ first: Int32Array, segment: Int32Array, offset: Float64Array, size: Float64Array, requested: Numbers, kind: Numbers, row: Uint32Array, group: Numbers, probable: Numbers | null, start: Numbers, site: Numbers, age: Numbers | null }} Tiles */
/** @typedef {{ size: Float64Array, group: Numbers, flags: Numbers, low: Numbers, high: Numbers }} Segments */
/** What memviz/ui/payloads/segment_view.py says besides the columns.
 * @typedef {{ at: number, is_placed: boolean, groups: [name: string, words: string][], sites: string[], meanings: string[], palettes: Record<string, number[]> }} Header */

export class Moment {
  /** @param {Header} header @param {Segments} segments @param {Tiles} tiles */
  constructor(header, segments, tiles) {
    this.header = header;
    this.segments = segments;
    this.tiles = tiles;
    this.palettes = palettesOf(header.palettes);
  }

  /** @param {{ header: any, body: string }} answer @returns {Promise<Moment>} */
  static async of({ header, body }) {
    const c = await unpack(header, bytesOf(body));
    const size = wide(c.size_low, c.size_high);
    const tiles = {
      ...tiling(c.segment_tiles, size),
      requested: wide(c.requested_low, c.requested_high),
      kind: c.kind, row: c.row, group: c.group, probable: c.probable || null, start: c.start, site: c.site,
      age: c.age_low ? wide(c.age_low, c.age_high) : null,
    };
    const sizes = wide(c.segment_size_low, c.segment_size_high);
    return new Moment(header, { size: sizes, group: c.segment_group, flags: c.segment_flags, low: c.segment_address_low, high: c.segment_address_high }, tiles);
  }

  /** The block that holds an allocation; -1 when it is not live here. @param {number} row of the lifetimes */
  tileOf(row) {
    return row < 0 ? -1 : this.tiles.row.indexOf(row + 1);
  }

  /** The allocation in a tile; -1 for free ones. @param {number} tile */
  rowOf(tile) {
    return this.tiles.kind[tile] === FREE ? -1 : this.tiles.row[tile] - 1;
  }

  // -- words

  /** @param {number} tile @returns {string[][]} */
  words(tile) {
    const { tiles, header } = this;
    if (tiles.kind[tile] === FREE) return [[`${bytesText(tiles.size[tile])} free`], [this.segmentWords(tiles.segment[tile])]];
    const [size, asked] = [tiles.size[tile], tiles.requested[tile]];
    const block = size === asked ? "its block is as large" : `in a block of ${grouped(size)} B`;
    return [
      [bytesText(asked), header.sites[tiles.site[tile]]],
      [`${tiles.probable?.[tile] ? "probably " : ""}${header.meanings[tiles.group[tile]]} · ${grouped(asked)} B asked, ${block}`],
      [this.ageWords(tile)],
    ];
  }

  /** @param {number} tile */
  ageWords(tile) {
    const { tiles, header } = this;
    const waits = tiles.kind[tile] === WAITING ? "freed, waiting for another stream · " : "";
    if (!tiles.start[tile]) return `${waits}there ${eventText(-1)}`;
    const start = tiles.start[tile] - 1;
    const passed = header.at - start;
    const time = tiles.age ? `, ${durationText(tiles.age[tile])}` : "";
    return `${waits}since ${eventText(start)}: ${grouped(passed)} event${passed === 1 ? "" : "s"}${time} old`;
  }

  /** @param {number} segment */
  segmentWords(segment) {
    const { flags, high, low, size } = this.segments;
    const kind = flags[segment] & EXPANDABLE ? "an expandable range" : "a segment";
    const address = (BigInt(high[segment]) << 32n) + BigInt(low[segment]);
    return `in ${kind} of ${bytesText(size[segment])} at 0x${address.toString(16)}, ${flags[segment] & LARGE_POOL ? "large" : "small"} pool`;
  }
}

/** Where each tile lies: the first ones fill the first segment, and so on.
 * @param {Numbers} counts of tiles in each segment @param {Float64Array} size of each tile */
export function tiling(counts, size) {
  const first = new Int32Array(counts.length + 1);
  const segment = new Int32Array(size.length);
  const offset = new Float64Array(size.length);
  let tile = 0;
  for (let s = 0; s < counts.length; s++) {
    for (let at = 0, upto = tile + counts[s]; tile < upto; at += size[tile++]) {
      segment[tile] = s;
      offset[tile] = at;
    }
    first[s + 1] = tile;
  }
  return { first, segment, offset, size };
}
