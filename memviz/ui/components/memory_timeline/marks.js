// @ts-check
// Moments that the program named (`memviz.mark`): a line through the plot with a label, which chooses the moment.
import { shape } from "../base.js";
import { cutMiddle, eventText } from "../words.js";
import { Part } from "./viewport.js";

const LETTER = 6.1;
const MOST_LETTERS = 28;
/** Nearer lines would hatch the plot. */
const APART = 4;
const ROW = 13;
/** Rows of labels, one below the other. */
const ROWS = 2;

/** A line, and its label where there is room: `side` is the way that it reads from the line.
 * @typedef {{ x: number, instant: number, name: string, text: string, side: 1 | -1, row: number }} Flag */

export class Marks extends Part {
  /** @returns {SVGElement[]} */
  shapes() {
    const { height } = this.viewport;
    return this.flags().map(({ x, instant, name, text, side, row }) => {
      const flag = shape("g", { class: "mvt-mark-of-program" });
      flag.append(
        shape("title", {}, `${name} · ${eventText(instant - 1)}`),
        shape("line", { x1: x, x2: x, y1: 0, y2: height, class: "mvt-markline" }),
        shape("path", { d: `M${x},${row * ROW}h${side * 6}l${side * -2},3l${side * 2},3h${side * -6}z`, class: "mvt-flag" }),
        ...(text ? [shape("text", { x: x + side * 9, y: row * ROW + 11, class: "mvt-marktext", "text-anchor": side > 0 ? "start" : "end" }, text)] : []),
      );
      // Not a press on the plot, which would choose what lies below.
      flag.addEventListener("pointerdown", (event) => event.stopPropagation());
      flag.addEventListener("click", () => this.timeline.choosing.setMoment(instant));
      return flag;
    });
  }

  /** Those in sight, from left to right. @returns {Flag[]} */
  flags() {
    const { value, viewport, data } = this.timeline;
    if (!data || viewport.isStill()) return [];
    /** @type {Flag[]} */ const flags = [];
    /** Where the next label may begin, by row. */
    const free = Array(ROWS).fill(0);
    let line = -APART;
    for (const [name, instant] of value?.marks || []) {
      const x = viewport.xOfInstant(instant);
      if (x < 0 || x > viewport.width || x - line < APART) continue;
      line = x;
      const text = cutMiddle(name, MOST_LETTERS);
      const wide = text.length * LETTER + 14;
      const side = x + wide <= viewport.width ? 1 : -1;
      const row = free.findIndex((from) => (side > 0 ? x : x - wide) >= from);
      if (row >= 0) free[row] = side > 0 ? x + wide : x;
      flags.push({ x, instant, name, text: row < 0 ? "" : text, side, row: Math.max(row, 0) });
    }
    return flags;
  }
}
