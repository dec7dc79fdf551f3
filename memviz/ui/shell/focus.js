// @ts-check
// Whoever works by keys stands somewhere. When what they pressed goes away with its answer (a row that was closed, a view that
// gave way to another), a browser leaves them nowhere: nothing is marked, and a screen reader is silent. So they stand on what
// took its place in the same part of the page, else on the tab that is shown.
import { all, clamp } from "../components/base.js";

const STOPS = "a[href], button, input, select, textarea, summary, [tabindex]";
const TABS = '#tabs [role="tablist"] [data-tab-id]';
const MORE_TABS = "#tabs .overflow-menu button";

/** Where they stand, in which part of the page, and as which of its stops. @type {HTMLElement | null} */
let stop = null;
let part = "";
let doing = "";
/** @type {string | null} */ let words = "";
let place = 0;
/** By keys, or by what speaks for them; who points at things sees where they are. */
let isKeyed = false;
/** @type {HTMLElement | null} */ let given = null;

/** @param {HTMLElement} node */
const isSeen = (node) => node.isConnected && node.getClientRects().length > 0;

/** @param {Element | null} area */
function stopsIn(area) {
  return (area ? all(STOPS, area) : []).filter((node) => node.tabIndex >= 0 && !(/** @type {HTMLButtonElement} */ (node).disabled) && isSeen(node));
}

/** What a press on it does, as its data says; empty where they say nothing. @param {HTMLElement} node */
const doingOf = ({ dataset }) => (Object.keys(dataset).length ? JSON.stringify(dataset) : "");

/** @param {FocusEvent} event */
function stand({ target }) {
  if (!(target instanceof HTMLElement)) return;
  const area = target.parentElement?.closest("[id]") || null;
  stop = target;
  part = area?.id || "";
  place = stopsIn(area).indexOf(target);
  doing = doingOf(target);
  words = target.textContent;
  watching.disconnect();
  watching.observe(target);
}

function shownTab() {
  const shown = all(TABS).find((tab) => tab.getAttribute("aria-selected") === "true" && isSeen(tab));
  return shown || /** @type {HTMLElement | null} */ (document.querySelector(MORE_TABS));
}

function standElsewhere() {
  // A browser takes its focus from what was hidden only after this is heard.
  const isLost = [document.body, stop].includes(/** @type {HTMLElement} */ (document.activeElement));
  if (!stop || !isKeyed || !isLost) return;
  const isThere = isSeen(stop);
  // Gradio may draw another control with the element of the one that was pressed; one that says "Copied" is none.
  if (isThere && (!doing || doingOf(stop) === doing)) return;
  const area = document.getElementById(part);
  const near = stopsIn(area);
  const same = near.find((node) => (doing ? doingOf(node) === doing : node.textContent === words && node.tagName === stop?.tagName));
  const next = same || (isThere ? null : insteadOf(stop, area) || near[clamp(place, 0, near.length - 1)]);
  if (next) next.focus();
  else if (!isThere) standOnTab();
}

/** Of what was hidden: what its menu hangs on, or what comes next; of a part that has nothing left: what comes before it.
 * @param {HTMLElement} gone @param {Element | null} area */
function insteadOf(gone, area) {
  const menu = gone.closest("details:not([open])");
  if (menu) return menu.querySelector("summary");
  const isHidden = gone.isConnected;
  const from = isHidden ? gone : area;
  if (!from || (!isHidden && stopsIn(area).length)) return null;
  const side = isHidden ? Node.DOCUMENT_POSITION_FOLLOWING : Node.DOCUMENT_POSITION_PRECEDING;
  const beside = stopsIn(from.closest('[role="tabpanel"]')).filter((node) => from.compareDocumentPosition(node) & side);
  return beside[isHidden ? 0 : beside.length - 1] || null;
}

function standOnTab() {
  given = shownTab();
  given?.focus({ preventScroll: true });
}

/** Hears of what is taken away and of what is hidden alike. */
const watching = new ResizeObserver(standElsewhere);

/** An answer may turn the page after it took away what was pressed. */
export function followTab() {
  if (given && given === document.activeElement && given !== shownTab()) standOnTab();
}

export function listenToFocus() {
  document.addEventListener("focusin", stand);
  document.addEventListener("keydown", () => ([isKeyed, given] = [true, null]), true);
  document.addEventListener("pointerdown", () => (isKeyed = false), true);
}
