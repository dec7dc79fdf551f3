// @ts-check
// A saved page: the page's own components, with everything that they would ask a server for in this very file.
import { all, onModeChange } from "../components/base.js";
import { mount as mountLitPanel } from "../components/lit_panel/lit_panel.js";
import { mount as mountTimeline } from "../components/memory_timeline/timeline.js";
import { mount as mountOverlay } from "../components/overlay/overlay.js";
import { mount as mountRanks } from "../components/rank_map/rank_map.js";
import { mount as mountPlot } from "../components/reserved_plot/reserved_plot.js";
import { mount as mountPair } from "../components/segment_pair/segment_pair.js";
import { mount as mountWaterfall } from "../components/waterfall/waterfall.js";
import { draw, listenToButtons, onDrawn, pinnedPanel, place, readTexts, saved, sortTables, state, texts } from "./panels.js";
import { SavedTrace } from "./trace.js";

/** @import { Gradio } from "../components/base.js" */
/** @import { State } from "./panels.js" */

// -- what a server would answer

/** @type {Record<string, SavedTrace>} */
const traces = Object.fromEntries(Object.entries(saved.traces || {}).map(([key, data]) => [key, new SavedTrace(data)]));

/** @type {Gradio["server"]} */
const server = {
  timeline_piece: async (request) => traces[request.key].piece(request),
  compared_rows: async ({ sides, by, row }) => {
    const trace = (/** @type {string} */ key) => traces[key];
    return { lit: await Promise.all(sides.map(trace).map(async (/** @type {SavedTrace} */ side) => ({ bits: await side.bits(side.data.compared, by, row) }))) };
  },
  segment_map: async ({ key }) => saved.maps[key],
};

/** Draws a component; what it returns draws another value there.
 * @param {(host: HTMLElement, gradio: Gradio) => unknown} component @param {string} id @param {any} value @param {(data: any) => void} [select] */
function mounted(component, id, value, select = () => {}) {
  const props = { value };
  /** @type {(() => void)[]} */ const watching = [];
  // An event says what it says when it is sent, as to a server.
  const tell = { select: (/** @type {any} */ event) => select(JSON.parse(JSON.stringify(event))), click: () => {} };
  component(place(id), { props, server, watch: (_, changed) => watching.push(changed), tell });
  return (/** @type {any} */ next) => {
    props.value = next;
    for (const changed of watching) changed();
  };
}

// -- Explore

let pinned = -1;
/** @type {(value: any) => void} */ let giveTimeline = () => {};

/** What the file has no columns for is not offered. @param {string} key */
function offerWhatIsKept(key) {
  const { value, pieces } = traces[key].data;
  for (const option of place("timeline").querySelectorAll("option")) {
    if (option.closest("select")?.getAttribute("aria-label") === "Colour") option.hidden = !pieces[`groups ${option.value}`];
  }
  for (const choice of all('[aria-label="Axis"]', place("timeline"))) choice.hidden = !value.has_times;
}

/** @param {any} said by the timeline */
async function hear(said) {
  if (said?.key !== state.trace) return;
  if (String(said.at) !== state.at && traces[state.trace].data.moments.includes(said.at)) {
    Object.assign(state, { at: String(said.at), path: "" });
    draw();
  }
  if (said.pin === pinned) return;
  pinned = said.pin;
  if (pinned < 0) return draw("inspector");
  const found = await traces[said.key].allocation(said.pin);
  if (pinned === said.pin && state.trace === said.key) place("inspector").replaceChildren(pinnedPanel(found, pinned, texts[found.text]));
}

function startExplore() {
  if (!state.trace) return;
  const isShown = state.shown !== "compare";
  giveTimeline = mounted(mountTimeline, "timeline", isShown ? traces[state.trace].data.value : {}, hear);
  offerWhatIsKept(state.trace);
  const litRows = mounted(mountLitPanel, "live-set", "");
  onDrawn("live-set", () => {
    litRows("");
    sortTables();
  });
}

/** @param {State} before */
function turnExplore(before) {
  if (state.trace === before.trace && state.shown === before.shown) return;
  pinned = -1;
  if (state.shown === "compare") return;
  offerWhatIsKept(state.trace);
  giveTimeline(traces[state.trace].data.value);
}

// -- Compare

/** @type {(before: State) => void} */ let turnComparison = () => {};

function startComparison() {
  if (!saved.compare) return;
  const { sides, aligned, overlay } = saved.compare;
  const values = () => sides.map((/** @type {any} */ side, /** @type {number} */ i) => ({ ...side, axis: state.axis, align: aligned[Number(state.align)][i] }));
  const overlaid = () => ({ ...overlay, other: Number(state.other), shown: state.overlay === "yes" });
  const give = values().map((/** @type {any} */ value) => mounted(mountTimeline, `compare-${value.badge}`, value));
  const giveOverlay = mounted(mountOverlay, "compare-overlay", overlaid());
  const rows = mounted(mountWaterfall, "differences", "");
  onDrawn("differences", () => rows(""));
  turnComparison = (before) => {
    if (before.align !== state.align || before.axis !== state.axis) values().forEach((/** @type {any} */ value, /** @type {number} */ i) => give[i](value));
    if (before.other !== state.other || before.overlay !== state.overlay) giveOverlay(overlaid());
  };
}

// -- Ranks

function startRanks() {
  if (!saved.ranks) return;
  const give = mounted(mountRanks, "ranks-map", saved.ranks, ({ rank }) => {
    Object.assign(state, { rank: String(rank) });
    draw();
  });
  onDrawn("ranks-one", () => give({ ...saved.ranks, chosen: Number(state.rank) }));
}

// -- light or dark: as somebody chose, else as the system has it

function followMode() {
  const system = matchMedia("(prefers-color-scheme: dark)");
  try {
    if (localStorage.getItem("memviz-dark") !== null) return;
  } catch {
    // Nothing is kept there then.
  }
  let mine = system.matches;
  const follow = () => document.body.classList.toggle("dark", (mine = system.matches));
  follow();
  system.addEventListener("change", follow);
  onModeChange(() => document.body.classList.contains("dark") !== mine && system.removeEventListener("change", follow));
}

async function start() {
  followMode();
  await readTexts();
  startExplore();
  startComparison();
  if (saved.plot) mounted(mountPlot, "what-if-plot", saved.plot);
  if (saved.plot) mounted(mountPair, "what-if-maps", { maps: saved.shown_maps });
  startRanks();
  for (const value of saved.run || []) mounted(mountTimeline, `run-${value.badge}`, value);
  listenToButtons((before) => {
    turnExplore(before);
    turnComparison(before);
  });
  draw();
  document.body.dataset.saved = "ready";
}

start();
