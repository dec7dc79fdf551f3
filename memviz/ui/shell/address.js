// @ts-check
// The address is a link to what is seen; steps.js makes entries of it that the back button comes to: to the one trace that is explored, or to what a tab
// says of itself in [data-mv-query], whose trace is the open one unless it names several.
import { all, onceQuiet, onSaid } from "../components/base.js";
import { followTab } from "./focus.js";
import { noteAddress, notePlace } from "./steps.js";

const OF_THE_TIMELINE = ["at", "from", "to", "low", "high", "pin", "order", "colour", "axis", "card"];
const OURS = [
  ...["trace", ...OF_THE_TIMELINE, "tab"],
  ...["traces", "other", "by", "sort", "align", "step", "name", "overlay"],
  ...["run", "pins", "story", "fit"],
  ...["memory", "card", "overhead", "expandable", "max_split", "roundup", "threshold", "more", "release"],
];
const COMPARE = "Compare";
const SAMPLE = "sample:";
/** What Gradio draws anew that the address or a tab's number depends on. */
const WATCHED = "#traces, #actions, #compare-place, #ranks-verdict, #what-if-form, #run-form, .tab-container";
const QUIET_MS = 120;
const JOINED_MS = 50;

/** Of the trace that is explored: its timeline's key, and what that has said last; null where it says nothing yet.
 * @type {{ key: string, said: Record<string, string> | null }} */
let explored = { key: "", said: null };
/** The address is that of a run. */
let wasRun = false;

/** The Share menu has what the visible tab can be sent as. A link is for everybody where everybody has what it names:
 * the samples, and what is made of them again.
 * @param {string} tab @param {string[]} names */
function showMenu(tab, names) {
  const isOwn = !names.every((name) => name.startsWith(SAMPLE));
  const isHere = /^(localhost|127\.|\[::1\])/.test(location.hostname);
  const whom = isOwn ? "in this browser only" : isHere ? "on this machine only" : `for everyone with access to ${location.hostname}`;
  for (const menu of all(".mv-actions > details")) menu.hidden = !tab;
  // What is written there again would be heard as a change.
  for (const node of all("[data-mv-whom]")) if (node.textContent !== whom) node.textContent = whom;
  for (const node of all(".mv-actions [data-mv-tabs]")) node.hidden = !node.dataset.mvTabs?.split(" ").includes(tab);
  for (const button of all(".mv-actions [data-act]")) button.dataset.tab = tab;
}

/** @param {boolean} [isAsked] by somebody who wants to share what is seen */
export function followView(isAsked = false) {
  const seen = all("[data-mv-query]").find((tab) => tab.parentElement?.offsetParent);
  const { mvLink: link, mvExplored: key } = /** @type {HTMLElement | null} */ (document.querySelector("[data-mv-link]"))?.dataset || {};
  const query = new URLSearchParams(location.search);
  const named = query.get("trace");
  const saidOfIt = explored.key === key ? explored.said : null;
  const said = new URLSearchParams(seen ? seen.dataset.mvQuery : saidOfIt || {});
  // A link to a run has no traces: the form that it describes is predicted again.
  const isRun = said.has("run");
  const isExplore = link && document.getElementById("verdict")?.offsetParent;
  showMenu((seen && said.get("tab")) || (isExplore ? "explore" : ""), isRun ? [SAMPLE] : (said.get("traces") || link || "").split(","));
  // Untouched, the address stays as it was typed; but it never speaks of another tab or trace than what is seen.
  const isLeft = (!link && explored.key !== "") || wasRun;
  if (!seen && !isLeft && !(link && (isAsked || saidOfIt || query.has("tab") || (named && named !== link)))) return;
  wasRun = isRun;
  for (const key of OURS) query.delete(key);
  if (link && !isRun && !said.has("traces")) query.set("trace", link);
  for (const [key, value] of said) query.set(key, value);
  history.replaceState(history.state, "", String(query) ? `${location.pathname}?${query}` : location.pathname);
  if (named !== query.get("trace")) noteAddress();
}

onSaid("memviz:begun", ({ key }) => {
  explored = { key, said: null };
  followView();
});

onSaid("memviz:state", (state) => {
  const isSaid = (/** @type {string} */ key) => state[key] !== undefined && state[key] !== null && !(key === "pin" && state.pin < 0);
  explored = { key: state.key, said: Object.fromEntries(OF_THE_TIMELINE.filter(isSaid).map((key) => [key, String(state[key])])) };
  followView();
});

onSaid("memviz:joined", onceQuiet(() => followView(), JOINED_MS));

const redrawn = onceQuiet(() => {
  // How many are compared stands on that tab.
  const compared = document.querySelectorAll("#traces .mv-badge").length;
  for (const tab of all('#tabs [role="tab"]').filter((each) => each.textContent?.trim().startsWith(COMPARE))) {
    if (compared > 1) tab.dataset.count = String(compared);
    else delete tab.dataset.count;
  }
  followView();
  notePlace();
  followTab();
}, QUIET_MS);

new MutationObserver((changes) => {
  if (changes.some(({ target }) => target instanceof Element && target.closest(WATCHED))) redrawn();
}).observe(document, { subtree: true, childList: true, attributes: true, attributeFilter: ["aria-selected", "data-mv-query"] });
