// @ts-check
// Above the plot: the phases of the run.
import { el } from "../base.js";
import { Part } from "./part.js";

const MOST_PHASES = 400;
const LETTER = 6.2;

export class Phases extends Part {
  node = el("div", { class: "mvt-phases", "aria-hidden": "true" });

  draw() {
    const { value, viewport } = this.timeline;
    const phases = value?.phases || [];
    // An empty band keeps the plot where it was before the phases were known, and byte axes beside one that has some level.
    this.node.hidden = !phases.length && Boolean(value?.linked) && !value?.band;
    const nodes = [];
    for (const [name, first, last] of phases) {
      const [begin, end] = [viewport.xOf(viewport.placeOf(first)), viewport.xOf(viewport.placeOf(last))];
      if (end < 0 || begin > viewport.width || end - begin < 2) continue;
      const [left, right] = [Math.max(begin, 0), Math.min(end, viewport.width)];
      nodes.push(el("span", { class: "mvt-phase", title: name, style: `left:${left}px;width:${right - left - 1}px` }, phaseLabel(name, right - left)));
      if (nodes.length > MOST_PHASES) break;
    }
    this.node.replaceChildren(...nodes);
  }
}

/** The whole name, else its first word, else nothing: a label is never cut.
 * @param {string} name @param {number} width */
export function phaseLabel(name, width) {
  const room = (width - 12) / LETTER;
  const first = name.split(/[#.\s]/)[0];
  return name.length <= room ? name : first.length <= room ? first : "";
}
