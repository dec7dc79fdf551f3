// @ts-check
// Panels turn to other views by buttons with [data-set], the words of the state that they change; views.py makes both.
import { all, nearest } from "../components/base.js";
import { bytesOf } from "../components/memory_timeline/packed.js";
import { sortBy } from "./tables.js";

/** @typedef {Record<string, string>} State */
/** @typedef {{ place: string, fields: string[], views: Record<string, number>, shown?: string }} Panel */

export const saved = JSON.parse(document.getElementById("mv-saved")?.textContent || "{}");
/** @type {State} */
export const state = saved.state;

/** Every text of the panels, by its number.
 * @type {string[]} */
export const texts = [];

export const place = (/** @type {string} */ id) => /** @type {HTMLElement} */ (document.getElementById(id));

export async function readTexts() {
  const packed = new Blob([bytesOf(saved.texts)]).stream().pipeThrough(new DecompressionStream("deflate"));
  texts.push(...JSON.parse(await new Response(packed).text()));
}

/** What follows when a panel is drawn anew, by its place.
 * @type {Map<string, () => void>} */
const followers = new Map();

/** @param {string} id @param {() => void} follow */
export const onDrawn = (id, follow) => followers.set(id, follow);

/** @param {Panel} panel */
const viewOf = ({ fields, views }) => texts[views[fields.map((field) => state[field]).join("|")]];

/** Those whose view is another one now; `anew` is drawn in any case. All HTML is the page's own, which escapes every text.
 * @param {string} [anew] */
export function draw(anew) {
  for (const panel of /** @type {Panel[]} */ (saved.panels)) {
    const html = viewOf(panel);
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
    if (button.dataset.act === "sort" && !Object.keys(change).length) return sortBy(button);
    const panel = button.closest("[id]");
    const before = { ...state };
    Object.assign(state, change);
    draw();
    turned(before);
    if (!button.isConnected && panel) standOnSame(button, panel);
  });
}

/** What was pressed is drawn anew; the keyboard stays with it.
 * @param {HTMLElement} button @param {Element} panel */
function standOnSame(button, panel) {
  all("[data-set]", panel).find((other) => other.dataset.act === button.dataset.act && other.dataset.value === button.dataset.value)?.focus();
}
