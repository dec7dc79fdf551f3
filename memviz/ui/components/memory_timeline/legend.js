// @ts-check
// Above the plot: what every colour in sight means, with bytes at the moment; what has no room stands behind "n more". And
// which allocations keep their colour: what is kept in the legend or in a table, with a chip that says so and ends it, and
// what is pointed at. What is kept stays when the colours come to mean something else.
import { button, el, isDark, onSaid, say } from "../base.js";
import { bytesText, cutMiddle, grouped } from "../words.js";
import { piece } from "./data.js";
import { Part } from "./viewport.js";

/** @import { Light } from "./data.js" */

const LONGEST = 30;
const LONGEST_CHIP = 36;
const MARKS = { cached: "Reserved, not in use", reserved: "Reserved from the device", peak: "Peak of live bytes" };

/** A group of the legend, of the colours as they were when it was chosen.
 * @typedef {{ meaning: string, group: number, words: string, mask: Uint8Array }} Kept */

export class Filters extends Part {
  node = el("div", { class: "mvt-chips" });
  /** @type {Kept | null} */ kept = null;
  /** What a row or box elsewhere on the page keeps lit: here, only its words. @type {string | null} */
  row = null;
  /** What other parts of the page want lit, kept or pointed at. @type {Light | null} */
  wanted = null;
  /** @type {Uint8Array | null} */ light = null;
  /** @type {Uint8Array | null} */ pointed = null;
  /** @type {number | null} */ pointedGroup = null;

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
    const mask = light && data ? data.maskOfBits((await piece(data.server, { key: data.key, piece: "lit", ...light })).columns.bits) : null;
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
    this.keep(this.isKept(group) ? null : { meaning: data.meaning, group, words: data.labels[group], mask: data.maskOfGroup(group) });
  }

  /** @param {number} group */
  isKept(group) {
    return this.kept?.group === group && this.kept.meaning === this.data.meaning;
  }

  /** @param {Kept | null} kept */
  keep(kept) {
    this.kept = kept;
    this.pointed = this.pointedGroup = null;
    this.draw();
    this.show();
  }

  /** The last thing that was kept in the legend. @returns {boolean} whether there was one */
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
  const node = button("", `Show all, not only ${words}`, drop);
  node.classList.add("mvt-chip");
  node.append("only ", el("b", {}, cutMiddle(words, LONGEST_CHIP)), " ×");
  return node;
}

/** @param {Uint8Array | null} one @param {Uint8Array | null} other */
function common(one, other) {
  return one && other ? one.map((bit, row) => bit & other[row]) : one || other;
}

/** @typedef {{ group: number, label: string, bytes: number }} Item */

export class Legend extends Part {
  row = el("div", { class: "mvt-legend", role: "group", "aria-label": "Colour legend, with bytes at the moment" });
  more = el("button", { type: "button", class: "mvt-key mvt-more", "aria-expanded": "false", onclick: () => this.open(Boolean(this.list.hidden)) });
  list = el("div", { class: "mvt-more-list", role: "group", "aria-label": "Other colours", hidden: "" });
  /** What is drawn beside the colours. */
  marks = el("div", { class: "mvt-marks" }, ...Object.entries(MARKS).map(([name, title]) => el("span", { class: `mvt-mark mvt-mark-${name}`, title }, el("i"), name)));
  node = el("div", { class: "mvt-legend-row", onkeydown: (/** @type {KeyboardEvent} */ event) => this.key(event) }, this.row, this.more, this.marks, this.timeline.filters.node, this.list);
  /** Where on the screen it was clicked last. */
  clickedAt = [NaN, NaN];
  /** What it was last drawn for. */
  drawnFor = "";

  listen() {
    document.addEventListener("pointerdown", ({ target }) => !(target instanceof Node && this.node.contains(target)) && this.open(false));
  }

  /** It is drawn anew with the next picture. */
  forget() {
    this.drawnFor = "";
  }

  clear() {
    this.row.replaceChildren();
    this.more.hidden = this.list.hidden = this.marks.hidden = true;
    this.forget();
  }

  draw() {
    const { data } = this;
    const { choosing, viewport, canvas, filters } = this.timeline;
    const moment = choosing.answered;
    const wanted = [moment, data.meaning, isDark(), filters.kept?.group, filters.row, data.key, viewport.width, canvas.seen.join("")].join("|");
    if (wanted === this.drawnFor) return;
    this.drawnFor = wanted;
    const items = legendItems(data.labels, data.groupBytes(moment), canvas.seen);
    this.marks.hidden = Boolean(this.timeline.value?.of) || !data.spans.reservedPeak().bytes;
    const colours = data.colours[isDark() ? "dark" : "light"];
    const nodes = items.map((item) => this.entry(item, colours[item.group]));
    const active = document.activeElement;
    const focused = active instanceof HTMLElement && this.node.contains(active) ? active.dataset.group : undefined;
    this.fold(nodes, items);
    if (focused !== undefined) nodes.find((node) => node.dataset.group === focused)?.focus();
  }

  /** For a picture, which has room for all of them. @returns {[colour: string, words: string][]} */
  keys() {
    const { data } = this;
    const colours = data.colours[isDark() ? "dark" : "light"];
    const items = legendItems(data.labels, [], this.timeline.canvas.seen);
    const marks = data.spans.reservedPeak().bytes ? [/** @type {[string, string]} */ ([this.timeline.colour("--mv-hatch"), "cached (reserved, not in use)"])] : [];
    return [...items.map(({ group, label }) => /** @type {[string, string]} */ ([colours[group], label])), ...marks];
  }

  /** @param {Item} item @param {string} colour */
  entry({ group, label, bytes }, colour) {
    const { filters } = this.timeline;
    const attributes = { type: "button", class: "mvt-key", "data-group": String(group), "aria-pressed": String(filters.isKept(group)), title: `${label}: ${grouped(bytes)} B` };
    const toggle = (/** @type {MouseEvent} */ event) => {
      this.clickedAt = [event.clientX, event.clientY];
      filters.toggle(group);
    };
    const acts = { onclick: toggle, onmousemove: (/** @type {MouseEvent} */ event) => this.hover(event, group), onmouseleave: () => filters.point(null) };
    return el("button", { ...attributes, ...acts }, el("i", { style: `background:${colour}` }), `${cutMiddle(label, LONGEST)} `, el("b", {}, bytesText(bytes)));
  }

  /** A click may move another entry under a pointer that rests; nobody points at that one.
   * @param {MouseEvent} event @param {number} group */
  hover({ clientX, clientY }, group) {
    const { filters } = this.timeline;
    if (filters.pointedGroup !== group && (clientX !== this.clickedAt[0] || clientY !== this.clickedAt[1])) filters.point(group);
  }

  /** In one line, or two where it is narrow, in the order of the stack: the smallest go behind "n more", what is kept last.
   * @param {HTMLElement[]} nodes @param {Item[]} items */
  fold(nodes, items) {
    const rank = (/** @type {number} */ i) => (this.timeline.filters.isKept(items[i].group) ? Infinity : items[i].bytes);
    const bySize = items.map((_, i) => i).sort((a, b) => rank(a) - rank(b) || 0);
    const folded = new Set();
    this.list.replaceChildren();
    this.row.replaceChildren(...nodes);
    this.more.hidden = true;
    for (const i of bySize) {
      if (this.row.scrollWidth <= this.row.clientWidth && this.row.scrollHeight <= this.row.clientHeight) break;
      folded.add(i);
      nodes[i].remove();
      this.more.hidden = false;
      const bytes = [...folded].reduce((sum, item) => sum + items[item].bytes, 0);
      this.more.replaceChildren(`${folded.size} ${folded.size < nodes.length ? "more" : "colours"} `, el("b", {}, bytesText(bytes)));
    }
    this.list.replaceChildren(...nodes.filter((_, i) => folded.has(i)));
    if (!folded.size) this.open(false);
  }

  /** @param {boolean} isOpen */
  open(isOpen) {
    this.list.hidden = !isOpen;
    this.more.setAttribute("aria-expanded", String(isOpen));
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    if (event.key !== "Escape" || this.list.hidden) return;
    event.stopPropagation();
    this.open(false);
    this.more.focus();
  }
}

/** What has a colour in the picture, or bytes at the moment.
 * @param {string[]} labels @param {ArrayLike<number>} bytes of each @param {ArrayLike<number>} seen whether each is in sight
 * @returns {Item[]} */
export function legendItems(labels, bytes, seen) {
  return labels.map((label, group) => ({ group, label, bytes: bytes[group] })).filter(({ group, bytes: size }) => size || seen[group]);
}
