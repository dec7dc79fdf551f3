// @ts-check
// Of many open traces, as of ranks, a click on one marks it and shows its timeline before the server has answered:
// [data-mv-timeline] is a row's control, and names the timeline. What the mouse rests on is asked for before it is
// clicked, and after a click those beside it: who goes through ranks goes to the next one.
import { all, nearest, onSaid, say } from "../components/base.js";

const ROWS = "#traces [data-mv-timeline]";
const EXPLORED = "#timeline .mvt";
const REST_MS = 60;

let resting = 0;
/** A row was clicked, whose trace is not there yet. */
let isGoing = false;

const rows = () => all(ROWS);

/** Of the timeline that is seen.
 * @param {{ show?: string, expect?: string[] }} detail */
function ask(detail) {
  const root = /** @type {HTMLElement | null} */ (document.querySelector(EXPLORED));
  if (root?.offsetParent) say("memviz:ahead", { root, ...detail });
}

/** @param {Event} event */
function rest(event) {
  clearTimeout(resting);
  const key = nearest(event, ROWS)?.dataset.mvTimeline;
  if (key) resting = setTimeout(() => ask({ expect: [key] }), REST_MS);
}

/** @param {MouseEvent} event */
function go(event) {
  const row = nearest(event, ROWS);
  if (!row) return;
  isGoing = true;
  for (const each of rows()) {
    each.parentElement?.classList.toggle("mv-chosen", each === row);
    if (each === row) each.setAttribute("aria-current", "true");
    else each.removeAttribute("aria-current");
  }
  ask({ show: row.dataset.mvTimeline });
}

/** @param {{ key: string }} shown */
function expectNeighbours({ key }) {
  if (!isGoing) return;
  isGoing = false;
  const keys = rows().map((row) => row.dataset.mvTimeline || "");
  const at = keys.indexOf(key);
  if (at >= 0) ask({ expect: [keys[at - 1], keys[at + 1]].filter(Boolean) });
}

export function listenToRows() {
  document.addEventListener("pointerover", rest);
  document.addEventListener("focusin", rest);
  document.addEventListener("click", go, true);
  onSaid("memviz:begun", expectNeighbours);
}
