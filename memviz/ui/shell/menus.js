// @ts-check
// Menus are <details class="mv-menu">: one at a time, gone with Escape, with a click elsewhere and with what is chosen.
import { nearest } from "../components/base.js";

const MENU = "details.mv-menu";

const opened = () => /** @type {NodeListOf<HTMLDetailsElement>} */ (document.querySelectorAll(`${MENU}[open]`));

/** @param {Element | null} [kept] */
function close(kept) {
  for (const menu of opened()) if (menu !== kept) menu.open = false;
}

/** @param {KeyboardEvent} event */
function escape(event) {
  const [menu] = opened();
  if (event.key !== "Escape" || !menu) return;
  // One thing at a time: what else Escape undoes stays.
  event.stopPropagation();
  menu.open = false;
  menu.querySelector("summary")?.focus();
}

/** @param {Event} event */
function choose(event) {
  if (nearest(event, `${MENU} button`)) close();
}

export function listenToMenus() {
  document.addEventListener("pointerdown", (event) => close(nearest(event, MENU)));
  document.addEventListener("toggle", ({ target }) => target instanceof HTMLDetailsElement && target.matches(`${MENU}[open]`) && close(target), true);
  document.addEventListener("keydown", escape, true);
  document.addEventListener("click", choose);
}
