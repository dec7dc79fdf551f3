// @ts-check
// The back button undoes: each action of a visitor that leads to another view, choice, tab or trace is one entry of the
// browser's history, however many answers carry it out. What passes on the way there, as in a drag or a row of turns of
// the wheel, is none. The samples before anything is open are an entry too, so that going back from the first trace stays here.
import { all, onceQuiet, onSaid, say } from "../components/base.js";

const REST_MS = 700;
const TAB = '#tabs [role="tab"]';
const ACTS = ["pointerdown", "click", "keydown", "wheel", "change", "drop"];

/** What the explored timeline says of itself; memory_timeline/README.md has it all.
 * @typedef {{ key: string, [more: string]: any }} State */
/** `view` is null at the samples.
 * @typedef {{ view: State | null, tab: string, address: string }} Entry */

/** Where the browser's history stands. @type {Entry} */
const here = { view: null, tab: "", address: location.href };
/** @type {State | null} */ let awaited = null;
/** @type {State | null} */ let latest = null;
/** The visitor did something since the last entry. */
let hasActed = false;
/** Gone back to the samples or from them, which the server is asked for. */
let isGoing = false;

const isHome = () => !document.querySelector("[data-mv-link]");
const tabName = (/** @type {HTMLElement | undefined} */ tab) => tab?.textContent?.trim() || "";
const shownTab = () => tabName(all(TAB).find((tab) => tab.getAttribute("aria-selected") === "true"));

/** The pixels of a view are not what makes it another one. @param {State | null} view */
const told = (view) => JSON.stringify(view && { ...view, sight: null });

/** The first change after an action is an entry; what comes of the same action later belongs to it.
 * @param {Entry} entry */
function keep(entry) {
  // A page that was saved to a disk has no address of its own to go back to.
  if (!location.protocol.startsWith("http")) return;
  const isNew = hasActed;
  hasActed = false;
  // The address has followed the view already; the entry that is left gets back its own.
  if (isNew) history.replaceState({ memviz: { ...here } }, "", here.address);
  Object.assign(here, entry);
  history[isNew ? "pushState" : "replaceState"]({ memviz: { ...here } }, "", here.address);
}

const rest = onceQuiet((/** @type {State} */ view) => {
  if (!isHome() && told(view) !== told(here.view)) keep({ view, tab: shownTab(), address: location.href });
}, REST_MS);

/** A trace is shown from its beginning, or as a link says. @param {State} view */
function begin(view) {
  rest.cancel();
  latest = view;
  const before = awaited;
  awaited = null;
  if (before?.key === view.key) return say("memviz:back", before);
  keep({ view, tab: shownTab(), address: location.href });
}

/** @param {State} view */
function goBackTo(view) {
  const isThere = document.querySelector(`#timeline .mvt[data-key="${CSS.escape(view.key)}"]`);
  if (isThere) say("memviz:back", view);
  if (isThere && !isHome()) return;
  const row = all('#traces [data-act="choose"]').find(({ dataset }) => dataset.key && view.key.startsWith(dataset.key));
  awaited = row && !isThere ? view : null;
  isGoing = Boolean(row) && isHome();
  row?.click();
}

/** @param {PopStateEvent} event */
function popped({ state }) {
  /** @type {Entry | undefined} */ const entry = state?.memviz;
  if (!entry) return;
  rest.cancel();
  hasActed = false;
  Object.assign(here, entry);
  const tab = all(TAB).find((one) => tabName(one) === entry.tab);
  if (entry.tab !== shownTab()) tab?.click();
  if (entry.view) return goBackTo(entry.view);
  isGoing = !isHome();
  if (isGoing) all('#foot [data-act="home"]')[0]?.click();
}

/** Another tab, the samples, or the trace that was looked at before them: with the view as it is. */
export function notePlace() {
  const tab = shownTab(), view = isHome() ? null : latest;
  if (isGoing && isHome() === (here.view === null)) isGoing = false;
  if (!tab || isGoing) return;
  if (tab !== here.tab || (view === null) !== (here.view === null)) keep({ view, tab, address: location.href });
}

/** The trace that is seen has got its address. */
export function noteAddress() {
  here.address = location.href;
}

export function listenToSteps() {
  const acted = (/** @type {Event} */ { isTrusted, type }) => {
    // A click that no visitor made is the page's own, as on the row that was gone back to.
    if (!isTrusted && type === "click") return;
    hasActed = true;
    isGoing = false;
  };
  // On the window, before whoever takes an event for itself.
  for (const name of ACTS) window.addEventListener(name, acted, { capture: true, passive: true });
  onSaid("memviz:begun", begin);
  onSaid("memviz:state", (view) => {
    latest = view;
    rest(view);
  });
  window.addEventListener("popstate", popped);
}
