// @ts-check
// What stands in and around a plot of bytes, as SVG: rules and ticks, labels at the right, lines in steps, and marks.
import { clamp, shape } from "./base.js";
import { byteTicksBetween, grouped } from "./words.js";

/** @typedef {{ width: number, height: number }} Size */
/** @typedef {(bytes: number) => number} Height */
/** At a height: a figure, which may be empty, the words under it, and more classes for both.
 * @typedef {[y: number, figure: string, words: string, look?: string]} Label */

const FIGURE_ROOM = 30;
const WORDS_ROOM = 16;

/** A rule across the plot at each round number of bytes, named at the left; what they count from, unless it is 0, stands
 * in the lower corner.
 * @param {number} top @param {Size} size @param {Height} yOf @param {number} [bottom] */
export function byteRules(top, size, yOf, bottom = 0) {
  const { from, ticks } = byteTicksBetween(bottom, top);
  const rules = ticks.flatMap(({ value, text }) => [
    shape("line", { x1: 0, x2: size.width, y1: yOf(value), y2: yOf(value), class: "mvt-grid" }),
    shape("text", { x: -8, y: yOf(value) + 4, class: "mvt-tick mvt-left" }, text),
  ]);
  return from ? [...rules, shape("text", { x: 6, y: size.height - 6, class: "mvt-from" }, `axis starts at ${grouped(from)} B`)] : rules;
}

/** @param {Size} size */
export const groundLine = ({ width, height }) => shape("line", { x1: 0, x2: width, y1: height, y2: height, class: "mvt-tickline" });

/** Below the lower edge; near the sides the words stay inside.
 * @param {number} x @param {string} text @param {Size} size */
export function tickAt(x, text, { width, height }) {
  const anchor = x < 30 ? "start" : x > width - 30 ? "end" : "middle";
  return [
    shape("line", { x1: x, x2: x, y1: height, y2: height + 4, class: "mvt-tickline" }),
    shape("text", { x, y: height + 17, class: "mvt-tick", "text-anchor": anchor }, text),
  ];
}

/** Each value holds until the next column.
 * @param {number} count @param {(column: number) => number} xOf @param {(column: number) => number} yOf */
export function steppedPath(count, xOf, yOf) {
  let path = "";
  let before = "";
  for (let column = 0; column < count; column++) {
    const y = yOf(column).toFixed(1);
    if (y !== before) path += before ? `H${xOf(column).toFixed(1)}V${y}` : `M${xOf(column).toFixed(1)},${y}`;
    before = y;
  }
  return count ? `${path}H${xOf(count).toFixed(1)}` : "";
}

/** Each at its height, or as near below or above as none is covered.
 * @param {Label[]} labels @param {number} height @returns {Label[]} */
export function spread(labels, height) {
  const room = (/** @type {Label} */ [, figure]) => (figure ? FIGURE_ROOM : WORDS_ROOM);
  const placed = labels.map(([y, ...words]) => /** @type {Label} */ ([clamp(y, 8, height - 14), ...words]));
  placed.sort((a, b) => a[0] - b[0]);
  for (let i = 1; i < placed.length; i++) placed[i][0] = Math.max(placed[i][0], placed[i - 1][0] + room(placed[i - 1]));
  let most = height - 14;
  for (let i = placed.length - 1; i >= 0; i--) {
    placed[i][0] = Math.min(placed[i][0], most);
    if (i) most = placed[i][0] - room(placed[i - 1]);
  }
  return placed;
}

/** At the right of the plot, `gap` beside it.
 * @param {Label[]} labels @param {Size} size @param {number} [gap] */
export function sideLabels(labels, { width, height }, gap = 8) {
  return spread(labels, height).flatMap(([y, figure, words, look = ""]) => [
    shape("text", { x: width + gap, y: y + 1, class: `mvt-figure mvt-right${look}` }, figure),
    shape("text", { x: width + gap, y: y + (figure ? 15 : 4), class: `mvt-tick mvt-right${look}` }, words),
  ]);
}

/** Where memory ran out: a ring with a cross, and a hairline down.
 * @param {number} x @param {number} y @param {number} height */
export const failureMark = (x, y, height) => [
  shape("line", { x1: x, x2: x, y1: y, y2: height, class: "mvt-oomline" }),
  shape("circle", { cx: x, cy: y, r: 8, class: "mvt-oom" }),
  shape("path", { d: `M${x - 3},${y - 3}l6,6m0,-6l-6,6`, class: "mvt-oom" }),
];

/** @param {number} x @param {number} y */
export const peakMark = (x, y) => shape("path", { d: `M${x - 5},${y - 9}h10l-5,7z`, class: "mvt-peak" });
