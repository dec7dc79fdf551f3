// @ts-check
// What people do in a comparison, apart from its timelines:
//   [data-compare-by][data-compare-row]  hovering or focusing lights those allocations in all its timelines at once;
//                                        a click on it keeps them lit, Esc or another click ends that
//   [data-letter]                        a trace's badge: a click on it, or Shift and the letter, makes it A
// Which allocations a row has in each trace is asked of the server once for all of them.
import { all, isTyping, nearest, say } from "../base.js";
import { bytesOf, unpack } from "../memory_timeline/packed.js";
import { mount as mountPanel } from "../panel.js";

const MOST_KEPT = 32;
const ROW = "[data-compare-row]";

/** @import { Gradio } from "../base.js" */
/** A row, and by what the table is grouped.
 * @typedef {{ by: string, row: string }} Named */
/** Per trace one bit per allocation.
 * @typedef {Record<string, ArrayLike<number>>} Masks */

/** A saved page answers out of itself, unpacked already.
 * @param {{ header: any, body: string, bits?: ArrayLike<number> }} packed @returns {Promise<ArrayLike<number>>} */
const bitsOf = async ({ header, body, bits }) => bits || (await unpack(header, bytesOf(body))).bits;

const rows = () => all(ROW);

/** @param {HTMLElement} node @returns {Named} */
const named = ({ dataset }) => ({ by: dataset.compareBy || "", row: dataset.compareRow || "" });

class Rows {
  /** @type {Map<string, Masks>} */ known = new Map();
  /** @type {Named | null} */ kept = null;
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
    this.light(node ? named(node) : this.kept);
  }

  /** The newest wish wins: answers that come late are kept for the next time only.
   * @param {Named | null} row */
  async light(row) {
    const { sides = "[]", linked } = this.table()?.dataset || {};
    const name = row ? JSON.stringify([linked, row.by, row.row]) : "";
    if (name === this.shown) return;
    this.shown = name;
    const masks = row && (this.known.get(name) || (await this.ask(name, JSON.parse(sides), row)));
    if (this.shown === name) say("memviz:lit", { linked, masks });
  }

  /** @param {string} name @param {string[]} sides @param {Named} row @returns {Promise<Masks>} */
  async ask(name, sides, row) {
    const { lit } = await this.server.compared_rows({ sides, ...row });
    const bits = await Promise.all(lit.map(bitsOf));
    const masks = Object.fromEntries(sides.map((key, i) => [key, bits[i]]));
    this.known.set(name, masks);
    for (const oldest of this.known.keys()) if (this.known.size > MOST_KEPT) this.known.delete(oldest);
    return masks;
  }

  /** @param {MouseEvent} event */
  click(event) {
    const node = nearest(event, ROW);
    // A heading or badge in a row does its own thing.
    if (!node || nearest(event, "[data-act]")) return;
    const row = named(node);
    const isSame = this.kept?.by === row.by && this.kept.row === row.row;
    this.keep(isSame ? null : row);
  }

  /** @param {Named | null} row */
  keep(row) {
    this.kept = row;
    this.mark();
    this.light(row);
  }

  /** After every redraw too: what is kept stays kept while its row is there. */
  mark() {
    const { kept } = this;
    for (const node of rows()) {
      const isKept = kept !== null && node.dataset.compareBy === kept.by && node.dataset.compareRow === kept.row;
      node.classList.toggle("mv-litrow", isKept);
      const button = node.matches("button") ? node : node.querySelector("button[aria-pressed]");
      button?.setAttribute("aria-pressed", String(isKept));
    }
  }

  redrawn() {
    if (!this.table()) return;
    if (!rows().some((node) => node.dataset.compareRow === this.kept?.row)) this.kept = null;
    this.mark();
    if (this.element.offsetParent !== null) this.light(this.kept);
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
    if (event.key === "Escape" && this.kept) return this.keep(null);
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
