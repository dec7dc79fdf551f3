// @ts-check
// Panels turn to other views by buttons with [data-set], the words of the state that they change; views.py makes both.
import { all, el, nearest } from "../components/base.js";
import { bytesOf } from "../components/memory_timeline/packed.js";
import { bytesText, grouped } from "../components/words.js";

/** @typedef {Record<string, string>} State */
/** @typedef {{ place: string, fields: string[], views: Record<string, number>, shown?: string }} Panel */

export const saved = JSON.parse(document.getElementById("mv-saved")?.textContent || "{}");
/** @type {State} */
export const state = saved.state;

/** @type {string[]} */
export const texts = [];

export const place = (/** @type {string} */ id) => /** @type {HTMLElement} */ (document.getElementById(id));

export async function readTexts() {
  const packed = new Blob([bytesOf(saved.texts)]).stream().pipeThrough(new DecompressionStream("deflate"));
  texts.push(...JSON.parse(await new Response(packed).text()));
}

/** @type {Map<string, () => void>} */ const followers = new Map();

/** @param {string} id @param {() => void} follow */
export const onDrawn = (id, follow) => followers.set(id, follow);

/** Those whose view is another one now; `anew` is drawn in any case. All HTML is the page's own, which escapes every text.
 * @param {string} [anew] */
export function draw(anew) {
  for (const panel of /** @type {Panel[]} */ (saved.panels)) {
    const html = texts[panel.views[panel.fields.map((field) => state[field]).join("|")]];
    if (html === undefined || (panel.shown === html && panel.place !== anew)) continue;
    panel.shown = html;
    place(panel.place).innerHTML = html;
    followers.get(panel.place)?.();
  }
  const shown = state.shown === "compare" ? "compare" : state.trace;
  for (const part of all("[data-shown]")) part.hidden = part.dataset.shown !== state.shown;
  for (const tab of all("[data-tab]")) tab.setAttribute("aria-selected", String(tab.dataset.tab === shown));
}

/** @param {(before: State) => void} turned */
export function listenToButtons(turned) {
  document.addEventListener("click", (event) => {
    const button = nearest(event, "[data-set]");
    if (!button) return;
    const change = JSON.parse(button.dataset.set || "{}");
    if (button.dataset.act === "sort" && !Object.keys(change).length) {
      const name = button.dataset.value || "";
      const rising = name === sorted.name ? !sorted.rising : ["name", "category"].includes(name);
      Object.assign(sorted, { name, rising });
      return sortTables();
    }
    const panel = button.closest("[id]");
    const before = { ...state };
    Object.assign(state, change);
    draw();
    turned(before);
    if (button.isConnected || !panel) return;
    // What was pressed is drawn anew; the keyboard stays with it.
    const { act, value } = button.dataset;
    all("[data-set]", panel).find(({ dataset }) => dataset.act === act && dataset.value === value)?.focus();
  });
}

// -- tables, sorted by a column; what is summed up stays at the end

const sorted = { name: "bytes", rising: false };

export function sortTables() {
  for (const table of /** @type {NodeListOf<HTMLTableElement>} */ (document.querySelectorAll("#live-set .mv-groups"))) {
    const heads = [...(table.tHead?.rows[0].cells || [])];
    const column = heads.findIndex((head) => head.querySelector(`[data-value="${sorted.name}"]`));
    if (column >= 0) sortTable(table, heads, column);
  }
}

/** @param {HTMLTableElement} table @param {HTMLTableCellElement[]} heads @param {number} column */
function sortTable(table, heads, column) {
  heads.forEach((head, i) => markHead(head, i === column));
  const isNumber = heads[column].classList.contains("mv-number");
  const order = sorted.rising ? 1 : -1;
  const movable = [...table.tBodies[0].rows].filter((row) => row.querySelector("[data-keep]"));
  const ordered = movable
    .map((row) => ({ row, value: valueOf(row.cells[column], isNumber) }))
    .sort((a, b) => (a.value < b.value ? -order : a.value > b.value ? order : 0));
  table.tBodies[0].prepend(...ordered.map(({ row }) => row));
}

/** @param {HTMLTableCellElement} head @param {boolean} isSorted */
function markHead(head, isSorted) {
  const button = head.querySelector("[data-act=sort]");
  if (!button) return;
  const arrow = sorted.rising ? " ↑" : " ↓";
  button.textContent = (button.textContent || "").replace(/ [↑↓]$/, "") + (isSorted ? arrow : "");
  if (isSorted) head.setAttribute("aria-sort", sorted.rising ? "ascending" : "descending");
  else head.removeAttribute("aria-sort");
}

/** Figures by every digit, which stand in the title of the rounded ones.
 * @param {HTMLTableCellElement} cell @param {boolean} isNumber */
function valueOf(cell, isNumber) {
  const exact = /** @type {HTMLElement | null} */ (cell.querySelector("span[title]"));
  const words = exact?.title || cell.textContent || "";
  if (isNumber) return Number(words.replace(/[^\d.-]/g, ""));
  return (cell.querySelector(".mv-name")?.textContent || words).toLowerCase().trim();
}

// -- the pinned allocation, as the page's inspector shows it, with what the file knows of it

/** @param {string} name @param {(Node | string)[]} value */
const fact = (name, ...value) => [el("dt", {}, name), el("dd", {}, ...value)];
/** @param {string} words */
const soft = (words) => el("span", { class: "mv-soft" }, words);
/** @param {number} event */
const eventLink = (event) => el("button", { type: "button", class: "mv-link", "data-mv-at": event, title: "Go to this event" }, grouped(event));

/** @param {any} found what is known of it @param {number} row @param {string | undefined} stackHtml made by the page's inspector, which escapes every text */
export function pinnedPanel(found, row, stackHtml) {
  const square = el("i", { class: "mv-kind mv-square", style: `--mv-light:${found.colour.light};--mv-dark:${found.colour.dark}`, "aria-hidden": "true" });
  const stack = el("div");
  if (stackHtml !== undefined) stack.innerHTML = stackHtml;
  else stack.append(soft("Its stack is not saved in this file."));
  const begin = found.first >= 0 ? ["event ", eventLink(found.first)] : ["before the first event"];
  const end = found.last < found.events ? eventLink(found.last) : "the end";
  const unpin = el("button", { type: "button", class: "mv-link", "data-mv-pin": row }, "Unpin ", el("kbd", {}, "Esc"));
  return el(
    "section",
    { class: "mv-pinned" },
    el("button", { type: "button", class: "mv-handle", "data-mv-sheet": "", "aria-label": "Taller or smaller" }),
    el("div", { class: "mv-aside-head" }, el("h2", {}, "Pinned allocation"), unpin),
    el("p", { class: "mv-figure" }, el("b", {}, bytesText(found.bytes)), ` in ${found.site}`),
    el("dl", { class: "mv-dl" }, ...fact("Requested", `${grouped(found.bytes)} B`), ...fact("Category", square, ` ${found.kind}`), ...fact("Lifetime", ...begin, " → ", end)),
    stack,
  );
}
