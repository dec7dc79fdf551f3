// @ts-check
// Plain HTML that tells what was clicked in it; panel.py says what a control is.
import { inTurn, nearest } from "./base.js";

/** @typedef {import("./base.js").Gradio} Gradio */

/** @param {HTMLElement} one @param {HTMLElement} other */
const areAlike = (one, other) => JSON.stringify({ ...one.dataset }) === JSON.stringify({ ...other.dataset });

/** Clicks on what has `data-act`, and where keys do not click by themselves, Enter and Space on it.
 * @param {HTMLElement} element @param {Gradio} gradio */
export function mount(element, { tell }) {
  const click = inTurn(tell.click);
  const clicked = (/** @type {HTMLElement} */ control) => click({ ...control.dataset });
  element.addEventListener("click", (event) => {
    const control = nearest(event, "[data-act]");
    if (control && element.contains(control)) clicked(control);
  });
  /** @type {HTMLElement | null} */
  let pressed = null;
  element.addEventListener("pointerdown", (event) => (pressed = nearest(event, "[data-act]")));
  element.addEventListener("pointerup", (event) => {
    const control = nearest(event, "[data-act]");
    // Where it was drawn anew while it was pressed, a browser says nothing of a click.
    if (control && pressed && !pressed.isConnected && areAlike(control, pressed)) clicked(control);
    pressed = null;
  });
  element.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    const control = nearest(event, "[data-act]");
    if (!control || control.tagName === "BUTTON" || control.tagName === "A") return;
    event.preventDefault();
    clicked(control);
  });
}
