// @ts-check
// Of many open traces, as of ranks, a click on one marks it and shows its timeline before the server has answered:
// [data-mv-timeline] is a row's control, and names the timeline. What the mouse rests on is asked for before it is
// clicked, and after a click those beside it: who goes through ranks goes to the next one.
//
// A double click on the name of an open trace, or F2 while it is in focus, renames it in place. Enter and leaving the
// field keep the new name, Escape the old one; without a name it has that of its file again.
import { all, el, nearest, onceQuiet, onSaid, say } from "../components/base.js";

const ROWS = "#traces [data-mv-timeline]";
const EXPLORED = "#timeline .mvt";
const REST_MS = 60;

/** A row was clicked, whose trace is not there yet. */
let isGoing = false;

const rows = () => all(ROWS);

/** @param {{ show?: string, expect?: string[] }} detail */
function ask(detail) {
  const root = /** @type {HTMLElement | null} */ (document.querySelector(EXPLORED));
  if (root?.offsetParent) say("memviz:ahead", { root, ...detail });
}

const rest = onceQuiet((/** @type {Event} */ event) => {
  const key = nearest(event, ROWS)?.dataset.mvTimeline;
  if (key) ask({ expect: [key] });
}, REST_MS);

/** @param {MouseEvent} event */
function go(event) {
  const row = nearest(event, ROWS);
  if (!row) return;
  isGoing = true;
  for (const each of rows()) {
    each.parentElement?.classList.toggle("mv-chosen", each === row);
    each.ariaCurrent = each === row ? "true" : null;
  }
  ask({ show: row.dataset.mvTimeline });
}

const ROW = '#traces [data-act="choose"]';
const MOST_LETTERS = 80;

/** The field lies over the list, which an answer may draw anew meanwhile. @param {HTMLElement} row */
function rename({ title, dataset: { key = "" } }) {
  const row = () => /** @type {HTMLElement | null} */ (document.querySelector(`${ROW}[data-key="${CSS.escape(key)}"]`));
  const name = row()?.querySelector("b");
  if (!name) return;
  const { left, top, width } = name.getBoundingClientRect();
  const field = el("input", { type: "text", class: "mv-rename", value: title, maxlength: MOST_LETTERS, "aria-label": `New name of ${title}` });
  Object.assign(field.style, { left: `${left - 5}px`, top: `${top - 4}px`, width: `${width}px` });
  // It loses the focus too as it is taken away.
  let isOver = false;
  const end = (/** @type {boolean} */ isKept) => {
    if (isOver) return;
    isOver = true;
    const told = el("button", { type: "button", hidden: "", "data-act": "rename", "data-key": key, "data-name": field.value });
    field.remove();
    row()?.focus();
    if (!isKept || field.value === title) return;
    // The list tells of what is pressed in it.
    document.querySelector("#traces .mv-traces")?.append(told);
    told.click();
    told.remove();
  };
  field.addEventListener("blur", () => end(true));
  field.addEventListener("keydown", (event) => {
    event.stopPropagation();
    if (event.key === "Enter" || event.key === "Escape") end(event.key === "Enter");
  });
  document.body.append(field);
  field.select();
}

export function listenToRows() {
  document.addEventListener("pointerover", rest);
  document.addEventListener("focusin", rest);
  document.addEventListener("click", go, true);
  onSaid("memviz:begun", ({ key }) => {
    const keys = rows().map((row) => row.dataset.mvTimeline || "");
    const at = keys.indexOf(key);
    if (isGoing && at >= 0) ask({ expect: [keys[at - 1], keys[at + 1]].filter(Boolean) });
    isGoing = false;
  });
  document.addEventListener("dblclick", (event) => {
    const row = nearest(event, ROW);
    if (row && nearest(event, "b")) rename(row);
  });
  document.addEventListener("keydown", (event) => {
    const row = event.key === "F2" ? nearest(event, ROW) : null;
    if (row) rename(row);
  });
}
