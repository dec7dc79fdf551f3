// @ts-check
// On a narrow screen, and in a window that becomes one, the sidebar is a drawer that starts closed; the pinned
// allocation is a sheet there: half the screen or nearly all of it, by its handle.
import { nearest } from "../components/base.js";

const narrow = matchMedia("(max-width: 759px)");
const LOOK_MS = 50;
const MOST_LOOKS = 100;
const STILL_PIXELS = 8;

/** Once it is there, which on a slow line takes as long as it takes; one that is closed already stays so, and one that
 * its visitor opens is wanted open. */
export function closeDrawer() {
  if (!narrow.matches) return;
  let looks = 0;
  const waiting = setInterval(look, LOOK_MS);
  const listening = new AbortController();
  document.addEventListener("click", (event) => event.isTrusted && nearest(event, ".sidebar .toggle-button") && end(), { capture: true, signal: listening.signal });

  function look() {
    const drawer = document.querySelector(".sidebar");
    if (!drawer && narrow.matches) return;
    looks += 1;
    const toggle = /** @type {HTMLElement | null | undefined} */ (drawer?.matches(".open") ? drawer.querySelector(".toggle-button") : null);
    if (toggle || looks === MOST_LOOKS || !narrow.matches) end();
    if (narrow.matches) toggle?.click();
  }

  function end() {
    clearInterval(waiting);
    listening.abort();
  }
}

const isTall = () => document.body.classList.contains("mv-tall");

/** @param {boolean} yes */
const setTall = (yes) => document.body.classList.toggle("mv-tall", yes);

/** @param {HTMLElement} handle @param {number} moved downwards */
function dragged(handle, moved) {
  if (Math.abs(moved) < STILL_PIXELS) setTall(!isTall());
  else if (moved < 0) setTall(true);
  else if (isTall()) setTall(false);
  // Pulled down from half: away with it.
  else /** @type {HTMLElement | null | undefined} */ (handle.closest(".mv-pinned")?.querySelector("[data-mv-pin]"))?.click();
}

export function listenToSheet() {
  narrow.addEventListener("change", closeDrawer);
  document.addEventListener("pointerdown", (event) => {
    const handle = nearest(event, "[data-mv-sheet]");
    if (!handle) return;
    handle.setPointerCapture(event.pointerId);
    handle.addEventListener("pointerup", (end) => dragged(handle, end.clientY - event.clientY), { once: true });
  });
  document.addEventListener("keydown", (event) => {
    if (!nearest(event, "[data-mv-sheet]") || !["Enter", " ", "ArrowUp", "ArrowDown"].includes(event.key)) return;
    event.preventDefault();
    setTall(event.key === "ArrowUp" || (event.key !== "ArrowDown" && !isTall()));
  });
}
