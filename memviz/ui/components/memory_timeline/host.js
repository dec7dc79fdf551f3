// @ts-check
// Below the plot: host memory of the process over the same part of the run.
import { clamp, el, pointIn, shape } from "../base.js";
import { bytesText } from "../words.js";
import { Part } from "./viewport.js";

const HEIGHT = 28;
/** What a prediction and a recording count. */
const COUNTED = { tensors: "CPU tensors", resident: "Resident size of the process" };

/** Rows of instant, bytes and pinned bytes; each holds until the next. `top` is of all linked ones.
 * @typedef {{ of: "tensors" | "resident", peak: number, top?: number, rows: [instant: number, total: number, pinned: number][] }} Host */

export class HostLane extends Part {
  total = shape("path", { class: "mvt-hosttotal" });
  pinned = shape("path", { class: "mvt-hostpinned" });
  most = el("span", { class: "mvt-hostmost" });
  now = el("span", { class: "mvt-hostnow" });
  picture = shape("svg", { class: "mvt-hostpicture", "aria-hidden": "true" });
  node = el("div", { class: "mvt-host", role: "img", hidden: "", onpointermove: (/** @type {PointerEvent} */ event) => this.point(pointIn(this.node, event).x) }, this.picture, this.most, this.now);

  draw() {
    const { value, moment } = this.timeline;
    const host = value?.host;
    this.node.hidden = !host;
    if (!host) return;
    this.picture.replaceChildren(this.total, this.pinned);
    this.node.setAttribute("aria-label", `Host memory: ${COUNTED[host.of]}, ${bytesText(host.peak)} at most`);
    this.most.textContent = bytesText(host.peak);
    this.now.textContent = `host ${bytesText(rowAt(host, moment)[1])}`;
    this.total.setAttribute("d", this.outline(host, ([, total]) => total));
    this.pinned.setAttribute("d", this.outline(host, ([, total, pinned]) => Math.min(total, pinned)));
  }

  /** @param {Host} host @param {(row: Host["rows"][0]) => number} sizeOf */
  outline({ rows, peak, top = peak }, sizeOf) {
    const { viewport } = this;
    const at = (/** @type {number} */ instant) => clamp(viewport.xOf(viewport.placeOf(instant)), -1, viewport.width + 1).toFixed(1);
    const steps = rows.map((row) => `H${at(row[0])}V${(HEIGHT * (1 - sizeOf(row) / top)).toFixed(1)}`);
    return `M-1,${HEIGHT}${steps.join("")}H${viewport.width + 1}V${HEIGHT}Z`;
  }

  /** Under the pointer: what is there.
   * @param {number} x */
  point(x) {
    const { value, viewport } = this.timeline;
    if (!value?.host) return;
    const [, total, pinned] = rowAt(value.host, viewport.instantAt(viewport.placeAt(x)));
    this.node.title = `${COUNTED[value.host.of]}: ${bytesText(total)}${pinned ? `, pinned ${bytesText(pinned)}` : ""}`;
  }
}

/** @param {Host} host @param {number} instant */
export function rowAt({ rows }, instant) {
  return rows.findLast(([from]) => from <= instant) || [0, 0, 0];
}
