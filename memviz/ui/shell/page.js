// @ts-check
// What connects the parts of the page in the browser, without asking the server:
//   [data-light-by][data-light-group]  hovering or focusing lights those allocations in every timeline
//   [data-mv-at], [data-mv-pin]  a click moves the timeline's moment or pin
//   [data-mv-picture]  a click saves the plots that are seen as "png" or "svg";  [data-mv-share]  copies the address
//   [data-mv-copy]  a click copies that text;  [data-mv-dark], [data-mv-keys], [data-mv-close]  as they say
// The timeline hears `memviz:light` and `memviz:go`, and says `memviz:state` (see its README). The address is kept in
// address.js, the back button in steps.js, the rows of open traces in open_traces.js, where the keyboard stands after what
// it pressed is gone in focus.js, and what a narrow screen does otherwise in narrow.js.
import { all, isTyping, nearest, say } from "../components/base.js";
import { savePicture } from "../components/picture.js";
import { followView } from "./address.js";
import { listenToRows } from "./open_traces.js";
import { listenToFocus } from "./focus.js";
import { closeDrawer, listenToSheet } from "./narrow.js";
import { listenToSteps } from "./steps.js";

const REST_MS = 60;
const SAID_MS = 1500;
const CONTROLS = "[data-mv-copy],[data-mv-dark],[data-mv-keys],[data-mv-close],[data-mv-share],[data-mv-picture]";
const FIND = "[data-mv-find] input";

// -- lighting: what is rested on, not what is passed over, since each asks the server

/** @type {string | null} */ let lit = null;
let lighting = 0;

/** @param {HTMLElement | null} node */
function light(node) {
  const detail = node && { by: node.dataset.lightBy, group: node.dataset.lightGroup };
  const wanted = detail && `${detail.by}|${detail.group}`;
  clearTimeout(lighting);
  if (wanted === lit) return;
  lighting = setTimeout(() => {
    lit = wanted;
    say("memviz:light", detail);
  }, node ? REST_MS : 0);
}

document.addEventListener("pointerover", (event) => light(nearest(event, "[data-light-by]")));
document.addEventListener("focusin", (event) => light(nearest(event, "[data-light-by]")));
document.addEventListener("focusout", () => light(null));

// -- going

/** @param {string | undefined} text */
const number = (text) => (text === undefined ? undefined : Number(text));

document.addEventListener("click", (event) => {
  const node = nearest(event, "[data-mv-at],[data-mv-pin]");
  if (node) say("memviz:go", { at: number(node.dataset.mvAt), pin: number(node.dataset.mvPin) });
});

// -- small controls

const keys = () => /** @type {HTMLDialogElement | null} */ (document.getElementById("mv-keys"));

/** @param {HTMLElement} button @param {string} text */
async function copy(button, text) {
  const before = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "The browser does not allow copying here";
  }
  setTimeout(() => (button.textContent = before), SAID_MS);
}

/** @param {HTMLElement} button */
function press(button) {
  const { mvPicture, mvCopy, mvShare, mvDark, mvKeys } = button.dataset;
  if (mvPicture !== undefined) savePicture(/** @type {"png" | "svg"} */ (mvPicture));
  else if (mvCopy !== undefined) copy(button, mvCopy);
  else if (mvShare !== undefined) {
    followView(true);
    // The menu has closed by then.
    copy(button.closest("details")?.querySelector("summary") || button, location.href);
  } else if (mvDark !== undefined) setDark(!document.body.classList.contains("dark"));
  else if (mvKeys !== undefined) keys()?.showModal();
  else button.closest("dialog")?.close();
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
  if (event.key === "?") keys()?.showModal();
  if (event.key !== "/") return;
  const field = all(FIND).find((shown) => shown.offsetParent);
  if (!field) return;
  event.preventDefault();
  field.focus();
});

document.addEventListener("click", (event) => {
  const button = nearest(event, CONTROLS);
  if (button) press(button);
});

// -- menus: <details class="mv-menu">, one at a time, gone with Escape, with a click elsewhere and with what is chosen

const MENU = "details.mv-menu";

const opened = () => /** @type {HTMLDetailsElement[]} */ (all(`${MENU}[open]`));

/** @param {Element | null} [kept] */
function close(kept) {
  for (const menu of opened()) if (menu !== kept) menu.open = false;
}

document.addEventListener("keydown", (event) => {
  const [menu] = opened();
  if (event.key !== "Escape" || !menu) return;
  // One thing at a time: what else Escape undoes stays.
  event.stopPropagation();
  menu.open = false;
  menu.querySelector("summary")?.focus();
}, true);

document.addEventListener("pointerdown", (event) => close(nearest(event, MENU)));
document.addEventListener("toggle", ({ target }) => target instanceof HTMLDetailsElement && target.matches(`${MENU}[open]`) && close(target), true);
document.addEventListener("click", (event) => nearest(event, `${MENU} button`) && close());

// -- dark and light: the mode a visitor chose, unless the address says which

/** @param {boolean} isDark */
function setDark(isDark) {
  document.body.classList.toggle("dark", isDark);
  try {
    localStorage.setItem("memviz-dark", isDark ? "1" : "0");
  } catch {
    // Private windows may refuse; the choice then lasts as long as the page.
  }
}

try {
  const chosen = localStorage.getItem("memviz-dark");
  if (chosen !== null && !new URLSearchParams(location.search).get("__theme")) document.body.classList.toggle("dark", chosen === "1");
} catch {
  // Nothing was kept.
}

closeDrawer();
listenToFocus();
listenToRows();
listenToSteps();
listenToSheet();
