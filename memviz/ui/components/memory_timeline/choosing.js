// @ts-check
// What people choose on the plot: a moment, a range, an allocation; and where other parts of the page point.
import { clamp } from "../base.js";
import { Part } from "./part.js";

/** Each is optional: an event, an allocation, a span of events.
 * @typedef {{ at?: number, pin?: number, from?: number, to?: number }} Place */

export class Choosing extends Part {
  /** The moment that everything answers for: of a range its peak, which may be any of its instants. */
  get answered() {
    const { range, data, moment } = this.timeline;
    return range && data ? data.spans.largestIn(range[0], range[1] + 1) : moment;
  }

  /** @param {number} instant */
  setMoment(instant) {
    const { timeline } = this;
    timeline.moment = clamp(instant, 0, timeline.viewport.instants - 1);
    timeline.range = null;
    timeline.keys.forget();
    this.changed();
  }

  /** @param {number} one @param {number} other instants, in any order */
  showRange(one, other) {
    this.timeline.range = [Math.min(one, other), Math.max(one, other)];
    this.timeline.redraw();
  }

  /** @param {number} row */
  togglePin(row) {
    this.timeline.pin = this.timeline.pin === row ? -1 : row;
    this.changed();
  }

  /** Where another part of the page points.
   * @param {Place} place */
  go({ at, pin, from, to }) {
    const { timeline } = this;
    const { data, viewport, moves } = timeline;
    if (!data) return;
    if (isNumber(pin)) timeline.pin = timeline.pin === pin ? -1 : clamp(pin, -1, data.spans.count - 1);
    if (isNumber(from) && isNumber(to)) moves.glide({ first: viewport.placeOf(from + 1), last: viewport.placeOf(to + 2) }, true);
    if (isNumber(at)) this.reveal(clamp(at + 1, 0, viewport.instants - 1));
    else timeline.redraw();
    if (timeline.pin >= 0 && isNumber(pin) && !viewport.isFullHeight()) moves.revealHeight(moves.chosenHeight());
    timeline.say();
  }

  /** @param {number} instant */
  reveal(instant) {
    this.timeline.moves.revealPlace(this.timeline.viewport.placeOf(instant));
    this.setMoment(instant);
  }

  toPeak() {
    const { data, moves, viewport } = this.timeline;
    if (!data) return;
    const { peak, live } = data.spans;
    this.reveal(peak);
    if (!viewport.isHeightInSight(live[peak])) moves.revealHeight({ bottom: live[peak], top: live[peak] });
  }

  /** One thing at a time.
   * @returns {boolean} whether it was a thing of the timeline's own, of which nobody else knows */
  undo() {
    const { timeline } = this;
    if (timeline.tools.end()) return true;
    if (!timeline.interaction.tip.hidden) timeline.interaction.hideTip();
    else if (timeline.pin >= 0) timeline.pin = -1;
    else if (timeline.range) timeline.range = timeline.keys.marked = null;
    else if (timeline.filters.drop()) return true;
    else if (timeline.lit) timeline.filters.showLight(null);
    else return false;
    this.changed();
    return false;
  }

  changed() {
    this.timeline.redraw();
    this.timeline.say();
  }
}

/** @param {number | undefined | null} value @returns {value is number} */
export const isNumber = (value) => Number.isFinite(value);
