// @ts-check
// The allocator's map at one moment, as the server sends it: its segments, the tiles that fill them, and the words of each.
import { palettesOf } from "../base.js";
import { bytesOf, unpack } from "../memory_timeline/packed.js";
import { wide } from "../memory_timeline/spans.js";
import { bytesText, durationText, eventText, grouped } from "../words.js";

// What a tile is.
export const FREE = 0;
export const LIVE = 1;
export const WAITING = 2;
const LARGE_POOL = 1;
const EXPANDABLE = 2;

/** @typedef {ArrayLike<number>} Numbers */
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

  /** The block that holds an allocation; -1 when it is not live here.
   * @param {number} row of the lifetimes */
  tileOf(row) {
    return row < 0 ? -1 : this.tiles.row.indexOf(row + 1);
  }

  /** The allocation in a tile; -1 for free ones.
   * @param {number} tile */
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
    const waits = tiles.kind[tile] === WAITING ? "freed, waits for another stream · " : "";
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
