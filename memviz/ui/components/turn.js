// @ts-check
// Turns to the tab that an answer asks for, if its visitor has turned to none since asking; turn.py says why.
import { all, nearest, onSaid } from "./base.js";

/** @import { Gradio } from "./base.js" */

const TAB = '#tabs [role="tab"]';
/** What was asked for by a press on anything that is no tab, or by a choice. */
const ASKS = ["click", "keydown", "change"];
/** Where Gradio keeps tabs for which there is no room. */
const AMONG_TABS = '#tabs [role="tablist"], #tabs .overflow-dropdown';

let hasTurned = false;
let wanted = "";

/** @param {Event} event */
function noted(event) {
  const isTab = nearest(event, AMONG_TABS) !== null;
  if (event instanceof KeyboardEvent && (isTab || (event.key !== "Enter" && event.key !== " "))) return;
  hasTurned = isTab;
}

/** What `submit` makes of Gradio's tabs. */
export const chosen = () => ({ __type__: "update", selected: wanted });

/** @param {HTMLElement} _element @param {Gradio} gradio */
export function mount(_element, { props, watch, tell }) {
  for (const name of ASKS) document.addEventListener(name, noted, true);
  // The upload stops the events of files that are dropped or chosen before they come here.
  onSaid("memviz:files", () => (hasTurned = false));
  watch("value", () => {
    wanted = String(props.value || "").split(" ")[0];
    if (!wanted) return;
    if (!hasTurned) return tell.submit({});
    const tabs = all(TAB);
    const index = tabs.findIndex((tab) => tab.getAttribute("aria-selected") === "true");
    tell.select({ index, value: tabs[index]?.textContent?.trim() });
  });
}
