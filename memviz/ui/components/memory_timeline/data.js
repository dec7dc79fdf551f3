// @ts-check
// One trace as the timeline draws from it: what the server sends of it, piece by piece, and what is asked of that.
import { palettesOf } from "../base.js";
import { keepPiece, piecesOf } from "./kept.js";
import { bytesOf, ready } from "./packed.js";
import { Spans, summed, wide } from "./spans.js";

const MOST_AT_ONCE = 1 << 21;
/** Of the colours, as a timeline begins. */
export const FIRST_MEANING = "category";

/** @typedef {import("./packed.js").Piece} Piece */
/** @typedef {import("../base.js").Gradio["server"]} Server */
/** Allocations to light: those of one group, by what they are grouped.
 * @typedef {{ by: string, group: string }} Light */

// -- pieces

/** @typedef {(piece: string, header: any, body: string) => Promise<Piece>} Unpack */
/** Who unpacks what is so large that it would stop the page for a moment.
 * @type {Unpack | null} */
let aside = null;

/** @param {Unpack} how */
export function unpackAside(how) {
  aside = how;
}

/** {header, columns}, or {header, spans} of the piece "timeline".
 * @param {Server} server @param {{ key: string, piece: string, [more: string]: any }} request @returns {Promise<any>} */
export async function piece(server, request) {
  const { header, body, columns } = await server.timeline_piece(request);
  // A saved page answers out of itself, unpacked already.
  if (columns) return { header, columns };
  if (body.length > MOST_AT_ONCE && aside) return aside(request.piece, header, body);
  return (await ready(request.piece, header, bytesOf(body))).made;
}

/** What a timeline is drawn from: as far as it is at hand, and else as the server has it. Colours by anything but category
 * are not kept: what they mean depends on whom it is compared with.
 * @param {Server} server @param {string} key @param {string} meaning @param {string[]} [among] @returns {Promise<any[]>} */
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
  /** µs of each event.
   * @type {Float64Array | null} */
  times = null;
  /** @type {{ labels: string[], code: ArrayLike<number> } | null} */
  sites = null;
  /** @type {Promise<void> | null} */
  sitesAsked = null;
  /** The colour's group of each allocation.
   * @type {ArrayLike<number>} */
  group = [];
  /** A bit for each allocation: its group is inferred, and not sure.
   * @type {ArrayLike<number> | null} */
  probable = null;
  meaning = "";
  /** Of the groups.
   * @type {string[]} */
  labels = [];
  /** Of the groups, by mode.
   * @type {Record<string, string[]>} */
  colours = {};
  /** @type {Record<string, Uint32Array>} */
  palettes = {};

  /** @param {Server} server @param {string} key @param {any} timeline @param {any} groups */
  constructor(server, key, timeline, groups) {
    this.server = server;
    this.key = key;
    this.spans = Spans.of(timeline.spans);
    this.colourBy(groups);
  }

  /** @param {Server} server @param {string} key @param {string} meaning @param {string[]} [among] */
  static async of(server, key, meaning, among = []) {
    const [timeline, groups] = await piecesAsked(server, key, meaning, among);
    return new TimelineData(server, key, timeline, groups);
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

  /** @param {string} meaning @param {string[]} [among] the groups that have hues, where several traces share them */
  groupsBy(meaning, among = []) {
    return piece(this.server, { key: this.key, piece: "groups", meaning, among });
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

  /** What the colour of an allocation says, and how sure that is.
   * @param {number} row */
  groupWords(row) {
    const isProbable = this.probable && (this.probable[row >> 3] >> (row & 7)) & 1;
    return `${isProbable ? "probably " : ""}${this.labels[this.group[row]]}`;
  }

  /** Empty until they are read.
   * @param {number} row */
  siteOf(row) {
    return (this.sites && this.sites.labels[this.sites.code[row]]) || "";
  }

  // -- what is asked of it

  /** Live rows from the bottom up.
   * @param {number} instant @param {boolean} [byGroup] */
  stackAt(instant, byGroup = true) {
    return this.spans.stackAt(instant, this.group, this.labels.length, byGroup);
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

  /** Live bytes of each group.
   * @param {number} instant */
  groupBytes(instant) {
    const sums = new Float64Array(this.labels.length);
    for (const row of this.stackAt(instant)) sums[this.group[row]] += this.spans.size[row];
    return sums;
  }

  /** @param {Light} light @returns {Promise<Uint8Array>} */
  async maskOfLight(light) {
    const { columns } = await piece(this.server, { key: this.key, piece: "lit", ...light });
    return this.maskOfBits(columns.bits);
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
