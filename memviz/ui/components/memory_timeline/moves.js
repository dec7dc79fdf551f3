// @ts-check
// How the view moves: where to, how fast, and that linked timelines hear of it.
import { clamp, say } from "../base.js";
import { Part } from "./viewport.js";

const GLIDE_MS = 160;
/** Of the height, left free above and below what it is fitted to. */
const MARGIN = 0.15;

/** @import { Axis, Height, Sight } from "./viewport.js" */
/** What a linked timeline tells the others: places in the measure of `align`, and bytes, or `null` for all of them.
 * @typedef {{ axis: Axis, first: number, last: number, height: Height | null }} SharedView */

export class Moves extends Part {
  gliding = 0;

  // -- to where

  /** What is not named stays. @param {Partial<Sight>} sight */
  to(sight) {
    const { timeline, viewport } = this;
    viewport.look(this.bounded(sight));
    timeline.interaction.hideTip();
    timeline.redraw();
    const linked = timeline.value?.linked;
    const height = viewport.isFullHeight() ? null : { bottom: viewport.bottom, top: viewport.top };
    const [first, last] = [viewport.first, viewport.last].map((place) => viewport.toShared(place));
    if (linked) say("memviz:view", { from: timeline.id, linked, axis: viewport.axis, first, last, height });
    timeline.say();
  }

  /** @param {Partial<Sight>} sight @returns {Sight} */
  bounded(sight) {
    const { viewport } = this;
    const { first, last, bottom, top } = { ...viewport.sight(), ...sight };
    return { ...viewport.bounded(first, last), ...viewport.boundedBytes(bottom, top) };
  }

  /** Buttons and keys move the view in a moment that can be seen; wheel and drag at once.
   * @param {Partial<Sight>} sight @param {boolean} isSlow */
  glide(sight, isSlow) {
    cancelAnimationFrame(this.gliding);
    if (!isSlow || matchMedia("(prefers-reduced-motion: reduce)").matches) return this.to(sight);
    const from = this.viewport.sight();
    const goal = this.bounded(sight);
    const begin = performance.now();
    const step = (/** @type {number} */ now) => {
      const t = clamp((now - begin) / GLIDE_MS, 0, 1);
      // The last step lies where it was wanted, to the byte.
      if (t === 1) return this.to(goal);
      const eased = 1 - (1 - t) ** 3;
      const between = (/** @type {keyof Sight} */ edge) => from[edge] + (goal[edge] - from[edge]) * eased;
      this.to({ first: between("first"), last: between("last"), bottom: between("bottom"), top: between("top") });
      this.gliding = requestAnimationFrame(step);
    };
    this.gliding = requestAnimationFrame(step);
  }

  /** By shares of what is seen. @param {number} right @param {number} [up] */
  shift(right, up = 0) {
    const { first, last, bottom, top } = this.viewport;
    const [across, above] = [(last - first) * right, (top - bottom) * up];
    this.to({ first: first + across, last: last + across, bottom: bottom + above, top: top + above });
  }

  // -- nearer and farther

  /** About a place, which stays where it is.
   * @param {number} place @param {number} factor @param {boolean} [isSlow] */
  zoom(place, factor, isSlow = false) {
    const { first, last } = this.viewport;
    const scale = Math.max(factor, this.viewport.shortest() / (last - first));
    this.glide({ first: place - (place - first) * scale, last: place + (last - place) * scale }, isSlow);
  }

  /** The same for the height, about so many bytes.
   * @param {number} bytes @param {number} factor @param {boolean} [isSlow] */
  zoomHeight(bytes, factor, isSlow = false) {
    const { bottom, top } = this.viewport;
    const scale = Math.max(factor, this.viewport.lowest() / (top - bottom));
    this.glide({ bottom: bytes - (bytes - bottom) * scale, top: bytes + (top - bytes) * scale }, isSlow);
  }

  showAll() {
    this.glide({ ...this.viewport.whole(), bottom: 0, top: this.viewport.most }, true);
  }

  showFullHeight() {
    this.glide({ bottom: 0, top: this.viewport.most }, true);
  }

  /** What buttons and keys zoom about. */
  middle() {
    const { first, last } = this.viewport;
    const place = this.viewport.placeOf(this.timeline.choosing.answered);
    return place > first && place < last ? place : (first + last) / 2;
  }

  /** The same in the height: the chosen allocation, if it is in sight. */
  middleBytes() {
    const { bottom, top } = this.viewport;
    const chosen = this.chosenHeight();
    const bytes = chosen ? (chosen.bottom + chosen.top) / 2 : NaN;
    return bytes > bottom && bytes < top ? bytes : (bottom + top) / 2;
  }

  // -- so that something is seen

  /** @param {number} place */
  revealPlace(place) {
    const { first, last } = this.viewport;
    if (place < first || place > last) this.glide({ first: place - (last - first) / 2, last: place + (last - first) / 2 }, true);
  }

  /** @param {Height | null} height */
  revealHeight(height) {
    const { bottom, top } = this.viewport;
    if (!height || (height.bottom < top && height.top > bottom)) return;
    const middle = (height.bottom + height.top) / 2;
    this.glide({ bottom: middle - (top - bottom) / 2, top: middle + (top - bottom) / 2 }, true);
  }

  /** The chosen allocation fills the height. */
  fitHeight() {
    const chosen = this.chosenHeight();
    if (!chosen) return;
    const room = (chosen.top - chosen.bottom) * MARGIN;
    this.glide({ bottom: chosen.bottom - room, top: chosen.top + room }, true);
  }

  /** Where the allocation stands that is pinned, or else walked to: at the moment, or when it begins.
   * @returns {Height | null} */
  chosenHeight() {
    const { data, pin, keys, choosing, order } = this.timeline;
    const moment = choosing.answered;
    const row = pin >= 0 ? pin : keys.walked;
    if (!data || row < 0) return null;
    const { start, end } = data.spans;
    const instant = start[row] <= moment && moment < end[row] ? moment : start[row];
    return data.heightOf(row, instant, order !== "age");
  }

  /** Where another of those that are linked went. @param {SharedView} view */
  follow({ axis, first, last, height }) {
    const { timeline, viewport } = this;
    if (!timeline.data || axis !== viewport.axis) return;
    const { bottom, top } = height || { bottom: 0, top: viewport.most };
    viewport.look(this.bounded({ first: viewport.fromShared(first), last: viewport.fromShared(last), bottom, top }));
    timeline.redraw();
  }
}
