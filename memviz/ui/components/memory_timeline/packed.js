// @ts-check
// Columns as memviz/figures/packed_timeline.py packs them. No DOM in this file.
import { Spans } from "./spans.js";

/** @typedef {{ columns: [name: string, kind: string, count: number][], [more: string]: any }} Header */
/** Of unsigned numbers; what a header calls uint8 is a Uint8Array.
 * @typedef {Record<string, any>} Columns */
/** @typedef {{ header: Header, columns?: Columns, spans?: Spans }} Piece */

/** @param {string} base64 */
export function bytesOf(base64) {
  const raw = atob(base64);
  const bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return bytes;
}

/** @param {Header} header @param {BufferSource} buffer @returns {Promise<Columns>} */
export async function unpack(header, buffer) {
  const stream = new Blob([buffer]).stream().pipeThrough(new DecompressionStream("deflate"));
  const raw = new Uint8Array(await new Response(stream).arrayBuffer());
  /** @type {Columns} */ const columns = {};
  let at = 0;
  for (const [name, kind, count] of header.columns) {
    columns[name] = kind === "uint8" ? raw.slice(at, at + count) : words(raw, at, count);
    at += kind === "uint8" ? count : 4 * count;
  }
  return columns;
}

/** All lowest bytes come first, then all second ones, and so on.
 * @param {Uint8Array} raw @param {number} at @param {number} count */
function words(raw, at, count) {
  const made = new Uint32Array(count);
  const [b, c, d] = [at + count, at + 2 * count, at + 3 * count];
  for (let i = 0; i < count; i++) {
    made[i] = raw[at + i] | (raw[b + i] << 8) | (raw[c + i] << 16) | (raw[d + i] << 24);
  }
  return made;
}

/** A piece as it is drawn from, and the memory of it that another thread can be given instead of a copy.
 * @param {string} piece @param {Header} header @param {BufferSource} buffer @returns {Promise<{ made: Piece, owned: ArrayBuffer[] }>} */
export async function ready(piece, header, buffer) {
  const columns = await unpack(header, buffer);
  if (piece !== "timeline") return { made: { header, columns }, owned: Object.values(columns).map((column) => column.buffer) };
  const spans = new Spans(columns, header.events);
  const arrays = Object.values(spans).filter((field) => ArrayBuffer.isView(field));
  return { made: { header, spans }, owned: arrays.map((array) => /** @type {ArrayBuffer} */ (array.buffer)) };
}
