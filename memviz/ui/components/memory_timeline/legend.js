// @ts-check
// Above the plot: what the colours mean, with bytes at the moment, and the phases of the run.
import { el, isDark } from "../base.js";
import { bytesText, grouped } from "../words.js";

const FOLD_SHARE = 0.002;
const MOST_PHASES = 400;
const LETTER = 6.2;

/** @typedef {import("./timeline.js").MemoryTimeline} MemoryTimeline */
/** @typedef {import("./data.js").TimelineData} TimelineData */
/** @typedef {{ group: number, label: string, bytes: number }} Item */

export class Legend {
  /** @param {MemoryTimeline} timeline */
  constructor(timeline) {
    this.timeline = timeline;
    this.node = el("div", { class: "mvt-legend", role: "list", "aria-label": "What the colours mean, with bytes at the moment" });
    /** What it was last drawn for. */
    this.drawnFor = "";
    /** The group that stays lit.
     * @type {number | null} */
    this.kept = null;
  }

  /** It is drawn anew with the next picture. */
  forget() {
    this.drawnFor = "";
  }

  clear() {
    this.node.replaceChildren();
    this.forget();
  }

  /** @param {TimelineData} data */
  draw(data) {
    const { moment, viewport } = this.timeline;
    const wanted = [moment, data.meaning, isDark(), this.kept, data.key, viewport.width].join("|");
    if (wanted === this.drawnFor) return;
    this.drawnFor = wanted;
    const { items, folded } = legendItems(data.labels, data.groupBytes(moment), data.spans.live[moment]);
    const colours = data.colours[isDark() ? "dark" : "light"];
    /** @type {[HTMLElement, Item][]} */
    const shown = items.map((item) => [this.entry(item, colours[item.group]), item]);
    this.node.replaceChildren(...shown.map(([node]) => node));
    this.fold(shown, folded);
  }

  /** @param {Item} item @param {string} colour */
  entry({ group, label, bytes }, colour) {
    const attributes = { type: "button", class: "mvt-key", role: "listitem", "aria-pressed": String(this.kept === group), title: `${label}: ${grouped(bytes)} B` };
    const acts = { onclick: () => this.toggle(group), onmouseenter: () => this.light(group), onmouseleave: () => this.light(this.kept) };
    return el("button", { ...attributes, ...acts }, el("i", { style: `background:${colour}` }), `${label} `, el("b", {}, bytesText(bytes)));
  }

  /** It never wraps: what does not fit is folded, smallest first.
   * @param {[HTMLElement, Item][]} shown @param {number} folded bytes that are folded already */
  fold(shown, folded) {
    const room = this.node.clientWidth;
    const rest = el("span", { class: "mvt-key mvt-rest" });
    const tell = () => {
      rest.textContent = folded ? `other ${bytesText(folded)}` : "";
      if (folded) this.node.append(rest);
    };
    tell();
    const bySize = [...shown].sort(([, a], [, b]) => a.bytes - b.bytes);
    for (const [node, item] of bySize.slice(0, -1)) {
      if (this.node.scrollWidth <= room) break;
      node.remove();
      folded += item.bytes;
      tell();
    }
  }

  /** @param {number | null} group */
  light(group) {
    const { data } = this.timeline;
    if (data) this.timeline.showLit(group === null ? null : data.maskOfGroup(group));
  }

  /** Everything keeps its colour again. */
  unlight() {
    this.kept = null;
    this.timeline.lit = null;
  }

  /** @param {number} group */
  toggle(group) {
    this.kept = this.kept === group ? null : group;
    this.light(this.kept);
  }
}

/** What is drawn, and the bytes of what is too small to be told apart.
 * @param {string[]} labels @param {ArrayLike<number>} bytes of each @param {number} total
 * @returns {{ items: Item[], folded: number }} */
export function legendItems(labels, bytes, total) {
  const present = labels.map((label, group) => ({ group, label, bytes: bytes[group] })).filter((item) => item.bytes);
  const isSmall = (/** @type {Item} */ item) => item.bytes < total * FOLD_SHARE;
  return { items: present.filter((item) => !isSmall(item)), folded: present.filter(isSmall).reduce((sum, item) => sum + item.bytes, 0) };
}

// -- phases

export class Phases {
  /** @param {MemoryTimeline} timeline */
  constructor(timeline) {
    this.timeline = timeline;
    this.node = el("div", { class: "mvt-phases", "aria-hidden": "true" });
  }

  draw() {
    const { value, viewport } = this.timeline;
    const phases = value?.phases || [];
    // Beside one that has phases, an empty band keeps the byte axes level.
    this.node.hidden = !phases.length && !value?.band;
    const nodes = [];
    for (const [name, first, last] of phases) {
      const [begin, end] = [viewport.xOf(viewport.placeOf(first)), viewport.xOf(viewport.placeOf(last))];
      if (end < 0 || begin > viewport.width || end - begin < 2) continue;
      const [left, right] = [Math.max(begin, 0), Math.min(end, viewport.width)];
      nodes.push(el("span", { class: "mvt-phase", title: name, style: `left:${left}px;width:${right - left - 1}px` }, phaseLabel(name, right - left)));
      if (nodes.length > MOST_PHASES) break;
    }
    this.node.replaceChildren(...nodes);
  }
}

/** The whole name, else its first word, else nothing: a label is never cut.
 * @param {string} name @param {number} width */
export function phaseLabel(name, width) {
  const room = (width - 12) / LETTER;
  const first = name.split(/[#.\s]/)[0];
  return name.length <= room ? name : first.length <= room ? first : "";
}
