// @ts-check
// Which allocations keep their colour: what is kept in the legend or in a table, and what is pointed at. What is kept has
// a chip that says so and ends it, and stays when the colours come to mean something else.
import { button, el, onSaid, say } from "../base.js";
import { cutMiddle } from "../words.js";
import { Part } from "./part.js";

const LONGEST_CHIP = 36;

/** @typedef {import("./data.js").TimelineData} TimelineData */
/** @typedef {import("./data.js").Light} Light */
/** A group of the legend, of the colours as they were when it was chosen.
 * @typedef {{ meaning: string, group: number, words: string, mask: Uint8Array }} Kept */

export class Filters extends Part {
  node = el("div", { class: "mvt-chips" });
  /** @type {Kept | null} */
  kept = null;
  /** What a row or box elsewhere on the page keeps lit: here, only its words.
   * @type {string | null} */
  row = null;
  /** What other parts of the page want lit, kept or pointed at.
   * @type {Light | null} */
  wanted = null;
  /** @type {Uint8Array | null} */
  light = null;
  /** Of the group under the pointer.
   * @type {Uint8Array | null} */
  pointed = null;
  /** @type {number | null} */
  pointedGroup = null;

  listen() {
    onSaid("memviz:kept", (row) => {
      this.row = row && this.timeline.value && !this.timeline.value.linked ? row.words : null;
      this.draw();
    });
  }

  /** The trace is another one. */
  start() {
    Object.assign(this, { kept: null, row: null, wanted: null, light: null, pointed: null, pointedGroup: null });
    this.draw();
  }

  // -- what is lit

  /** @param {Light | null} light null ends it */
  async lightUp(light) {
    this.wanted = light;
    const { data } = this.timeline;
    if (light && !data) return;
    const mask = light && data ? await data.maskOfLight(light) : null;
    // A finding about the host has no allocations, and dims none.
    const hasAny = light?.by !== "finding" || mask?.includes(1);
    if (this.wanted === light && this.timeline.data === data) this.showLight(hasAny ? mask : null);
  }

  /** @param {Uint8Array | null} mask */
  showLight(mask) {
    this.light = mask;
    this.show();
  }

  /** @param {number | null} group */
  point(group) {
    const { data } = this.timeline;
    this.pointedGroup = group;
    this.pointed = data && group !== null ? data.maskOfGroup(group) : null;
    this.show();
  }

  /** What is pointed at alone, or else what all that is kept has in common. */
  show() {
    this.timeline.showLit(this.pointed || common(this.kept?.mask || null, this.light));
  }

  // -- what is kept

  /** @param {number} group of the legend; once more ends it */
  toggle(group) {
    const { data } = this.timeline;
    if (!data) return;
    const isSame = this.isKept(group, data);
    this.keep(isSame ? null : { meaning: data.meaning, group, words: data.labels[group], mask: data.maskOfGroup(group) });
  }

  /** @param {number} group @param {TimelineData} data */
  isKept(group, data) {
    return this.kept?.group === group && this.kept.meaning === data.meaning;
  }

  /** @param {Kept | null} kept */
  keep(kept) {
    this.kept = kept;
    this.pointed = this.pointedGroup = null;
    this.draw();
    this.show();
  }

  /** The last thing that was kept in the legend.
   * @returns {boolean} whether there was one */
  drop() {
    const had = this.kept !== null;
    if (had) this.keep(null);
    return had;
  }

  // -- the chips

  draw() {
    const { kept, row } = this;
    const chips = [];
    if (kept) chips.push(chip(kept.words, () => this.drop()));
    if (row) chips.push(chip(row, () => say("memviz:unkeep", null)));
    this.node.replaceChildren(...chips);
    this.timeline.legend.forget();
    this.timeline.redraw();
  }
}

/** @param {string} words @param {() => void} drop */
function chip(words, drop) {
  const node = button("", `Show everything again, not only ${words}`, drop);
  node.classList.add("mvt-chip");
  node.append("only ", el("b", {}, cutMiddle(words, LONGEST_CHIP)), " ×");
  return node;
}

/** @param {Uint8Array | null} one @param {Uint8Array | null} other */
function common(one, other) {
  return one && other ? one.map((bit, row) => bit & other[row]) : one || other;
}
