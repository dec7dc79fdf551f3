// @ts-check
// A field that tells what is typed once the typing rests. Esc clears it, and leaves it when it is empty.
import { latest, onceQuiet } from "./base.js";

const REST_MS = 150;

/** @param {HTMLElement} element @param {import("./base.js").Gradio} gradio */
export function mount(element, { tell }) {
  const field = /** @type {HTMLInputElement} */ (element.querySelector("input"));
  const input = latest(tell.input);
  const typed = () => input({ query: field.value });
  field.addEventListener("input", onceQuiet(typed, REST_MS));
  field.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    if (!field.value) return field.blur();
    event.stopPropagation();
    field.value = "";
    typed();
  });
}
