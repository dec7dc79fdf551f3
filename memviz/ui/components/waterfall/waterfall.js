// @ts-check
// What people do in a comparison, apart from its timelines:
//   [data-compare-by][data-compare-row]  hovering or focusing lights those allocations in all its timelines at once;
//                                        a click on it keeps them lit, Esc or another click ends that
//   [data-letter]                        a trace's badge: a click on it, or Shift and the letter, makes it A
// Which allocations a row has in each trace is asked of the server once for all of them.
import { all, isTyping, nearest, say } from "../base.js";
import { bytesOf, unpack } from "../memory_timeline/packed.js";
import { KeptRow, mount as mountPanel } from "../panel.js";

const MOST_KEPT = 32;
const ROW = "[data-compare-row]";

/** @import { Gradio } from "../base.js" */
/** @import { Light } from "../memory_timeline/data.js" */
/** Per trace one bit per allocation.
 * @typedef {Record<string, ArrayLike<number>>} Masks */

class Rows {
  /** @type {Map<string, Masks>} */ known = new Map();
  kept = new KeptRow(ROW, "mv-litrow", ({ compareBy: by, compareRow: group }) => ({ by, group }));
  shown = "";

  /** @param {HTMLElement} element @param {Gradio["server"]} server */
  constructor(element, server) {
    this.element = element;
    this.server = server;
    const isHere = () => element.offsetParent !== null && this.table() !== null;
    document.addEventListener("pointerover", (event) => isHere() && this.hover(nearest(event, ROW)));
    document.addEventListener("focusin", (event) => isHere() && this.hover(nearest(event, ROW)));
    document.addEventListener("focusout", () => isHere() && this.hover(null));
    document.addEventListener("click", (event) => isHere() && this.click(event));
    document.addEventListener("keydown", (event) => isHere() && this.key(event), true);
  }

  /** @returns {HTMLElement | null} */
  table() {
    return this.element.querySelector("[data-sides]");
  }

  /** @param {HTMLElement | null} node */
  hover(node) {
    this.light(node ? this.kept.lightOf(node) : this.kept.light);
  }

  /** The newest wish wins: answers that come late are kept for the next time only.
   * @param {Light | null} row */
  async light(row) {
    const { sides = "[]", linked } = this.table()?.dataset || {};
    const name = row ? JSON.stringify([linked, row.by, row.group]) : "";
    if (name === this.shown) return;
    this.shown = name;
    const masks = row && (this.known.get(name) || (await this.ask(name, JSON.parse(sides), row)));
    if (this.shown === name) say("memviz:lit", { linked, masks });
  }

  /** @param {string} name @param {string[]} sides @param {Light} row @returns {Promise<Masks>} */
  async ask(name, sides, { by, group }) {
    const { lit } = await this.server.compared_rows({ sides, by, row: group });
    // A saved page answers out of itself, unpacked already.
    const bits = await Promise.all(lit.map(async (/** @type {any} */ packed) => packed.bits || (await unpack(packed.header, bytesOf(packed.body))).bits));
    const masks = Object.fromEntries(sides.map((key, i) => [key, bits[i]]));
    this.known.set(name, masks);
    for (const oldest of this.known.keys()) if (this.known.size > MOST_KEPT) this.known.delete(oldest);
    return masks;
  }

  /** @param {MouseEvent} event */
  click(event) {
    const node = nearest(event, ROW);
    // A heading or badge in a row does its own thing.
    if (node && !nearest(event, "[data-act]")) this.keep(this.kept.isKept(node) ? null : this.kept.lightOf(node));
  }

  /** @param {Light | null} light */
  keep(light) {
    this.kept.light = light;
    this.kept.mark();
    this.light(light);
  }

  /** What is kept stays kept while its row is there. */
  redrawn() {
    if (!this.table()) return;
    if (!all(ROW).some((row) => this.kept.isKept(row))) this.kept.light = null;
    this.kept.mark();
    if (this.element.offsetParent !== null) this.light(this.kept.light);
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
    if (event.key === "Escape" && this.kept.light) return this.keep(null);
    const letter = event.shiftKey && /^[A-H]$/.test(event.key) ? document.querySelector(`[data-letter="${event.key}"]`) : null;
    if (!(letter instanceof HTMLElement)) return;
    // Before a focused timeline takes it for one of its own keys.
    event.preventDefault();
    event.stopPropagation();
    letter.click();
  }
}

/** @param {HTMLElement} element @param {Gradio} gradio */
export function mount(element, gradio) {
  mountPanel(element, gradio);
  const table = new Rows(element, gradio.server);
  gradio.watch("value", () => table.redrawn());
}
