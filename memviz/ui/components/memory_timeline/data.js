// @ts-check
// One trace as the timeline draws from it: what the server sends of it, piece by piece, and what is asked of that.
import { palettesOf } from "../base.js";
import { bytesOf, ready } from "./packed.js";
import { Spans, Stack, summed, wide } from "./spans.js";

/** @import { Piece } from "./packed.js" */

// -- pieces at hand: of traces that were drawn, that came by themselves or were asked for ahead. What was used longest ago
// goes first, and the newest stays.

export const MOST_BYTES = 64 << 20;

/** By name; under `value` what the page said of the trace.
 * @typedef {Record<string, any>} Pieces */

/** By trace, the newest last. @type {Map<string, Pieces>} */
const kept = new Map();

/** @param {Pieces} pieces */
function bytesIn(pieces) {
  const fields = Object.values(pieces).flatMap((piece) => Object.values(piece.columns || piece.spans || {}));
  return fields.reduce((sum, field) => sum + (ArrayBuffer.isView(field) ? field.byteLength : 0), 0);
}

/** @param {string} key @param {string} name @param {any} made */
export function keepPiece(key, name, made) {
  kept.set(key, { ...piecesOf(key), [name]: made });
  let bytes = [...kept.values()].reduce((sum, pieces) => sum + bytesIn(pieces), 0);
  for (const [oldest, pieces] of kept) {
    if (bytes <= MOST_BYTES || kept.size === 1) return;
    bytes -= bytesIn(pieces);
    kept.delete(oldest);
  }
}

/** @param {string} key @returns {Pieces} */
export function piecesOf(key) {
  const pieces = kept.get(key);
  if (!pieces) return {};
  kept.delete(key);
  kept.set(key, pieces);
  return pieces;
}

/** @param {string} key */
export const isAtHand = (key) => Boolean(kept.get(key)?.timeline && kept.get(key)?.groups);

const MOST_AT_ONCE = 1 << 21;
/** Of the colours, as a timeline begins. */
export const FIRST_MEANING = "category";

/** @typedef {import("../base.js").Gradio["server"]} Server */
/** Allocations to light: those of one group, by what they are grouped.
 * @typedef {{ by: string, group: string }} Light */

// -- what the server sends

/** @typedef {(piece: string, header: any, body: string) => Promise<Piece>} Unpack */
/** Who unpacks what is so large that it would stop the page for a moment. */
export const unpacking = { aside: /** @type {Unpack | null} */ (null) };

/** {header, columns}, or {header, spans} of the piece "timeline".
 * @param {Server} server @param {{ key: string, piece: string, [more: string]: any }} request @returns {Promise<any>} */
export async function piece(server, request) {
  const { header, body, columns } = await server.timeline_piece(request);
  // A saved page answers out of itself, unpacked already.
  if (columns) return { header, columns };
  if (body.length > MOST_AT_ONCE && unpacking.aside) return unpacking.aside(request.piece, header, body);
  return (await ready(request.piece, header, bytesOf(body))).made;
}

/** What a timeline is drawn from: as far as it is at hand, and else as the server has it. Colours by anything but category
 * are not kept: what they mean depends on whom it is compared with.
 * @param {Server} server @param {string} key @param {string} meaning
 * @param {string[]} [among] the groups that have hues, where several traces share them @returns {Promise<any[]>} */
export async function piecesAsked(server, key, meaning, among = []) {
  const isKept = meaning === FIRST_MEANING;
  const at = piecesOf(key);
  const made = await Promise.all([at.timeline || piece(server, { key, piece: "timeline" }), (isKept && at.groups) || piece(server, { key, piece: "groups", meaning, among })]);
  keepPiece(key, "timeline", made[0]);
  if (isKept) keepPiece(key, "groups", made[1]);
  return made;
}

// -- one trace

export class TimelineData {
  /** µs of each event. @type {Float64Array | null} */
  times = null;
  /** @type {{ labels: string[], code: ArrayLike<number> } | null} */ sites = null;
  /** @type {Promise<void> | null} */ sitesAsked = null;
  /** @type {ArrayLike<number>} */ group = [];
  /** A bit for each allocation: its group is inferred, and not sure. @type {ArrayLike<number> | null} */
  probable = null;
  meaning = "";
  /** @type {string[]} */ labels = [];
  /** @type {Record<string, string[]>} */ colours = {};
  /** @type {Record<string, Uint32Array>} */ palettes = {};

  /** @param {Server} server @param {string} key @param {any} timeline @param {any} groups */
  constructor(server, key, timeline, groups) {
    this.server = server;
    this.key = key;
    this.spans = Spans.of(timeline.spans);
    this.colourBy(groups);
  }

  /** @param {any} groups the piece */
  colourBy({ header, columns }) {
    this.group = columns.group;
    this.probable = columns.probable || null;
    this.meaning = header.meaning;
    this.labels = header.labels;
    this.colours = header.colours;
    this.palettes = palettesOf(header.palettes);
  }

  async readTimes() {
    if (this.times) return;
    const { columns } = await piece(this.server, { key: this.key, piece: "times" });
    this.times = summed(wide(columns.time_low, columns.time_high));
  }

  /** Sites come once, when somebody first points at something. */
  readSites() {
    this.sitesAsked ??= piece(this.server, { key: this.key, piece: "sites" }).then(({ header, columns }) => {
      this.sites = { labels: header.labels, code: columns.site };
    });
    return this.sitesAsked;
  }

  /** @param {number} row */
  groupWords(row) {
    const isProbable = this.probable && (this.probable[row >> 3] >> (row & 7)) & 1;
    return `${isProbable ? "probably " : ""}${this.labels[this.group[row]]}`;
  }

  /** @param {number} row */
  siteOf(row) {
    return (this.sites && this.sites.labels[this.sites.code[row]]) || "";
  }

  // -- what is asked of it

  /** Live rows from the bottom up. @param {number} instant @param {boolean} [byGroup] */
  stackAt(instant, byGroup = true) {
    const stack = new Stack(byGroup ? this.labels.length : 1);
    stack.moveTo(this.spans, this.group, instant, byGroup);
    return stack;
  }

  /** Where an allocation stands in the stack of an instant; null where it is not live.
   * @param {number} row @param {number} instant @param {boolean} byGroup @returns {import("./viewport.js").Height | null} */
  heightOf(row, instant, byGroup) {
    let bottom = 0;
    for (const each of this.stackAt(instant, byGroup)) {
      const top = bottom + this.spans.size[each];
      if (each === row) return { bottom, top };
      bottom = top;
    }
    return null;
  }

  /** @param {number} instant */
  groupBytes(instant) {
    const sums = new Float64Array(this.labels.length);
    for (const row of this.stackAt(instant)) sums[this.group[row]] += this.spans.size[row];
    return sums;
  }

  /** @param {ArrayLike<number>} bits one per allocation */
  maskOfBits(bits) {
    const mask = new Uint8Array(this.spans.count);
    for (let i = 0; i < mask.length; i++) mask[i] = (bits[i >> 3] >> (i & 7)) & 1;
    return mask;
  }

  /** @param {number} group */
  maskOfGroup(group) {
    const mask = new Uint8Array(this.spans.count);
    for (let i = 0; i < mask.length; i++) mask[i] = this.group[i] === group ? 1 : 0;
    return mask;
  }
}
