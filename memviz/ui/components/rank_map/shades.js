// @ts-check
// Which shade a share of the highest peak has, and how high a row is. No DOM in this file.
import { pixel } from "../base.js";

const LIGHT = [0xf4f6fa, 0xc3d6ea, 0x76a9d8, 0x2f6fb3, 0x0c2c59];
const DARK = [0x191d24, 0x1f3a58, 0x2c6499, 0x64a5dc, 0xdcedff];
const MOST_HIGH = 480;
const HIGHEST_ROW = 22;

/** 256 colours as little-endian pixels: 0 is where nothing is known, the rest goes from none to the highest peak.
 * @param {boolean} dark @param {number} nothing 0xRRGGBB @returns {Uint32Array} */
export function shadesOf(dark, nothing) {
  const stops = dark ? DARK : LIGHT;
  const table = new Uint32Array(256);
  for (let i = 1; i < 256; i++) {
    const at = ((i - 1) / 254) * (stops.length - 1);
    const before = Math.min(Math.floor(at), stops.length - 2);
    table[i] = pixel(mixed(stops[before], stops[before + 1], at - before));
  }
  table[0] = pixel(nothing);
  return table;
}

/** @param {number} one @param {number} other @param {number} share */
function mixed(one, other, share) {
  let rgb = 0;
  for (const shift of [16, 8, 0]) {
    const [from, to] = [(one >> shift) & 255, (other >> shift) & 255];
    rgb |= Math.round(from + (to - from) * share) << shift;
  }
  return rgb;
}

/** Pixels of a row: whole ones, so that each rank can be pointed at, however many there are.
 * @param {number} rows */
export const rowHeight = (rows) => Math.max(1, Math.min(HIGHEST_ROW, Math.floor(MOST_HIGH / Math.max(rows, 1))));

/** Bytes of a cell, as near as its shade tells; null where nothing is known.
 * @param {number} shade @param {number} highest */
export const bytesOfShade = (shade, highest) => (shade ? ((shade - 1) / 254) * highest : null);
