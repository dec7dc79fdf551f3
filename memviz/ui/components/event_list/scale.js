// @ts-check
// How a list scrolls that is taller than browsers let an element be. No DOM in this file.

/** Browsers cut elements off somewhere above ten million pixels, without a word. */
const TALLEST = 8_000_000;
/** Near both ends a pixel of the scroll bar is a pixel of the list, however long the list is. */
const EDGE = 200_000;

/** Between the scroll bar's pixels and the list's, where the list is taller than an element may be. */
export class Scale {
  /** @param {number} total pixels of the whole list @param {number} view those in sight */
  constructor(total, view) {
    this.height = Math.min(total, TALLEST);
    this.lastBar = Math.max(this.height - view, 0);
    this.lastTop = Math.max(total - view, 0);
    this.isPlain = total <= TALLEST;
    this.speed = (this.lastTop - 2 * EDGE) / Math.max(this.lastBar - 2 * EDGE, 1);
  }

  /** @param {number} bar */
  topOf(bar) {
    if (this.isPlain || bar <= EDGE) return bar;
    if (bar >= this.lastBar - EDGE) return this.lastTop - (this.lastBar - bar);
    return EDGE + (bar - EDGE) * this.speed;
  }

  /** @param {number} top */
  barOf(top) {
    if (this.isPlain || top <= EDGE) return top;
    if (top >= this.lastTop - EDGE) return this.lastBar - (this.lastTop - top);
    return EDGE + (top - EDGE) / this.speed;
  }
}
