// @ts-check
// The back button undoes: each view, choice and tab that a person came to rest at is an entry of the browser's history.
// What passes on the way there, as in a drag or a row of turns of the wheel, is none.
import { onSaid, say } from "../components/base.js";

const REST_MS = 700;
const TAB = '#tabs [role="tab"]';

/** What the explored timeline says of itself; memory_timeline/README.md has it all.
 * @typedef {{ key: string, [more: string]: any }} State */
/** @typedef {{ view: State | null, tab: string, address: string }} Entry */

/** Where the browser's history stands. @type {Entry} */
const here = { view: null, tab: "", address: location.href };
/** Of a trace that is not shown yet, gone back to.
 * @type {State | null} */
let awaited = null;
let resting = 0;

const tabs = () => [.../** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll(TAB))];
const tabName = (/** @type {HTMLElement | undefined} */ tab) => tab?.textContent?.trim() || "";
const shownTab = () => tabName(tabs().find((tab) => tab.getAttribute("aria-selected") === "true"));

/** The pixels of a view are not what makes it another one.
 * @param {State | null} view */
const told = (view) => JSON.stringify(view && { ...view, sight: null });

/** @param {Entry} entry @param {boolean} isNew */
function keep(entry, isNew) {
  // A page that was saved to a disk has no address of its own to go back to.
  if (!location.protocol.startsWith("http")) return;
  // The address has followed the view already; the entry that is left gets back its own.
  if (isNew) history.replaceState({ memviz: { ...here } }, "", here.address);
  Object.assign(here, entry);
  if (isNew) history.pushState({ memviz: { ...here } }, "", here.address);
  else history.replaceState({ memviz: { ...here } }, "", here.address);
}

/** @param {State} view */
function rest(view) {
  if (told(view) !== told(here.view)) keep({ view, tab: shownTab(), address: location.href }, here.view !== null);
}

/** A trace is shown from its beginning, or as a link says.
 * @param {State} view */
function begin(view) {
  clearTimeout(resting);
  const before = awaited;
  awaited = null;
  if (before?.key === view.key) return say("memviz:back", before);
  const isAnother = here.view !== null && here.view.key !== view.key;
  keep({ view, tab: shownTab(), address: location.href }, isAnother);
}

/** @param {State} view */
function goBackTo(view) {
  if (document.querySelector(`#timeline .mvt[data-key="${CSS.escape(view.key)}"]`)) return say("memviz:back", view);
  const rows = /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll('#traces [data-act="choose"]'));
  const row = [...rows].find(({ dataset }) => dataset.key && view.key.startsWith(dataset.key));
  awaited = row ? view : null;
  row?.click();
}

/** @param {PopStateEvent} event */
function popped({ state }) {
  /** @type {Entry | undefined} */
  const entry = state?.memviz;
  if (!entry) return;
  clearTimeout(resting);
  Object.assign(here, entry);
  const tab = tabs().find((one) => tabName(one) === entry.tab);
  if (entry.tab !== shownTab()) tab?.click();
  if (entry.view) goBackTo(entry.view);
}

/** Another tab is an entry at once, with the view as it is. */
export function noteTab() {
  const tab = shownTab();
  if (!tab || tab === here.tab) return;
  keep({ view: here.view, tab, address: location.href }, here.tab !== "");
}

/** The trace that is seen has got its address. */
export function noteAddress() {
  here.address = location.href;
}

export function listenToSteps() {
  onSaid("memviz:begun", begin);
  onSaid("memviz:state", (view) => {
    clearTimeout(resting);
    resting = setTimeout(() => rest(view), REST_MS);
  });
  window.addEventListener("popstate", popped);
}
