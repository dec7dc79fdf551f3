// @ts-check
// Plain HTML that tells what was clicked in it; panel.py says what a control is.
import { all, inTurn, nearest } from "./base.js";

/** @import { Gradio } from "./base.js" */
/** @import { Light } from "./memory_timeline/data.js" */

/** The row of the page's tables whose allocations stay lit until another click on it. */
export class KeptRow {
  /** @type {Light | null} */ light = null;

  /** @param {string} rows a selector @param {string} look of the kept one @param {(data: DOMStringMap) => any} lightOf */
  constructor(rows, look, lightOf) {
    this.rows = rows;
    this.look = look;
    this.lightOf = (/** @type {HTMLElement} */ { dataset }) => /** @type {Light} */ (lightOf(dataset));
  }

  /** @param {HTMLElement} row */
  isKept(row) {
    const { by, group } = this.lightOf(row);
    return this.light?.by === by && this.light.group === group;
  }

  /** After every redraw too. @param {ParentNode} [within] */
  mark(within) {
    for (const row of all(this.rows, within)) {
      const button = row.matches("button") ? row : row.querySelector("[data-keep], button[aria-pressed]");
      row.classList.toggle(this.look, this.isKept(row));
      button?.setAttribute("aria-pressed", String(this.isKept(row)));
    }
  }
}

/** Answers can overtake each other on their way. A panel that holds their number ([data-mv-answer]) tells of an older one
 * that was shown after a newer one, as of a click, so that what it has overwritten is asked for again.
 * @param {HTMLElement} element @param {Gradio["watch"]} watch @param {(data: any) => void} click */
function tellOvertaken(element, watch, click) {
  let shown = 0;
  watch("value", () => {
    const number = Number(/** @type {HTMLElement | null} */ (element.querySelector("[data-mv-answer]"))?.dataset.mvAnswer || shown);
    if (number < shown) click({ act: "again" });
    shown = number;
  });
}

/** Clicks on what has `data-act`: buttons, which Enter and Space click as well.
 * @param {HTMLElement} element @param {Gradio} gradio */
export function mount(element, { watch, tell }) {
  const click = inTurn(tell.click);
  tellOvertaken(element, watch, click);
  const clicked = (/** @type {HTMLElement} */ control) => click({ ...control.dataset });
  element.addEventListener("click", (event) => {
    const control = nearest(event, "[data-act]");
    if (control && element.contains(control)) clicked(control);
  });
  /** @type {HTMLElement | null} */ let pressed = null;
  element.addEventListener("pointerdown", (event) => (pressed = nearest(event, "[data-act]")));
  element.addEventListener("pointerup", (event) => {
    const control = nearest(event, "[data-act]");
    const acts = [control, pressed].map((node) => JSON.stringify({ ...node?.dataset }));
    // Where it was drawn anew while it was pressed, a browser says nothing of a click.
    if (control && pressed && !pressed.isConnected && acts[0] === acts[1]) clicked(control);
    pressed = null;
  });
}
