// @ts-check
// Pieces that are at hand: of traces that were drawn, that came by themselves or were asked for ahead. So one of many
// is drawn as soon as it is clicked. Bounded in bytes: what was used longest ago goes first, and the newest stays.
// No DOM in this file.

export const MOST_BYTES = 64 << 20;

/** @typedef {import("./packed.js").Piece} Piece */
/** By name; under `value` what the page said of the trace.
 * @typedef {Record<string, any>} Pieces */

/** By trace, the newest last.
 * @type {Map<string, Pieces>} */
const kept = new Map();

/** @param {any} piece */
const bytesIn = (piece) => Object.values(piece.columns || piece.spans || {}).reduce((sum, field) => sum + (ArrayBuffer.isView(field) ? field.byteLength : 0), 0);

/** @param {Pieces} pieces */
const bytesOf = (pieces) => Object.values(pieces).reduce((sum, piece) => sum + bytesIn(piece), 0);

/** @param {string} key @param {string} name @param {any} made */
export function keepPiece(key, name, made) {
  kept.set(key, { ...piecesOf(key), [name]: made });
  let bytes = [...kept.values()].reduce((sum, pieces) => sum + bytesOf(pieces), 0);
  for (const [oldest, pieces] of kept) {
    if (bytes <= MOST_BYTES || kept.size === 1) return;
    bytes -= bytesOf(pieces);
    kept.delete(oldest);
  }
}

/** What there is of one; it counts as used.
 * @param {string} key @returns {Pieces} */
export function piecesOf(key) {
  const pieces = kept.get(key);
  if (!pieces) return {};
  kept.delete(key);
  kept.set(key, pieces);
  return pieces;
}

/** Whether it can be drawn without asking.
 * @param {string} key */
export const isAtHand = (key) => Boolean(kept.get(key)?.timeline && kept.get(key)?.groups);
