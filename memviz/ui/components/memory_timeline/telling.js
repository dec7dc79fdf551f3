// @ts-check
// What people choose on the plot: a moment, a range, an allocation; what the rest of the page is told of it, and says back.
import { clamp, latest, onceQuiet, say } from "../base.js";
import { bytesText } from "../words.js";
import { Part } from "./viewport.js";

/** @import { Axis } from "./viewport.js" */
/** @import { Light } from "./data.js" */

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

  /** @param {{ at?: number, pin?: number }} place an event, an allocation */
  go({ at, pin }) {
    const { timeline } = this;
    const { data, viewport, moves } = timeline;
    if (!data) return;
    if (isNumber(pin)) timeline.pin = timeline.pin === pin ? -1 : clamp(pin, -1, data.spans.count - 1);
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
   * @returns {boolean} true if the timeline handles it itself */
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
    // Only what is written over the allocations has changed.
    if (this.timeline.isAway) this.timeline.isStale = true;
    else this.timeline.schedule();
    this.timeline.say();
  }
}

/** @param {number | undefined | null} value @returns {value is number} */
const isNumber = (value) => Number.isFinite(value);

const TELL_MS = 90;

/** Where to start, in events: -1 is before the first. `low` and `high` are bytes, where not all of the height is seen.
 * @typedef {{ at?: number, pin?: number, from?: number, to?: number, low?: number | null, high?: number | null, order?: string, card?: string, colour?: string, axis?: Axis, lit?: Light | null }} State */

/** @typedef {ReturnType<Telling["state"]>} Said */

export class Telling extends Part {
  /** Something was chosen in a trace of which the page does not know yet that it is shown. */
  isHeldBack = false;
  /** What Python was told last. */
  told = "";
  later = onceQuiet(() => this.now(), TELL_MS, true);
  tell = latest((state) => this.timeline.tell.select(state));

  now() {
    const { timeline } = this;
    const { value, data } = timeline;
    if (!value || !data) return;
    if (value.isAhead) {
      this.isHeldBack = true;
      return;
    }
    timeline.live.textContent = `${timeline.momentWords()}, ${bytesText(data.spans.live[timeline.choosing.answered])} ${value.of ? "reserved" : "live"}`;
    const state = this.state(value.key, data.meaning);
    // The address follows the one timeline that is explored.
    if (!value.linked) say("memviz:state", state);
    const chosen = JSON.stringify([state.key, state.at, state.pin, state.range, state.colour]);
    if (chosen === this.told) return;
    this.told = chosen;
    this.tell(state);
  }

  /** @param {string} key @param {string} colour */
  state(key, colour) {
    const { choosing, pin, range, order, viewport } = this.timeline;
    const isFull = viewport.isFullHeight();
    return {
      key,
      at: choosing.answered - 1,
      pin,
      range: range && [range[0] - 1, range[1] - 1],
      from: viewport.instantAt(viewport.first) - 1,
      to: viewport.lastInstant() - 1,
      low: isFull ? null : Math.floor(viewport.bottom),
      high: isFull ? null : Math.ceil(viewport.top),
      order,
      colour,
      axis: viewport.axis,
      card: this.timeline.card || null,
      sight: viewport.sight(),
    };
  }

  /** A trace is shown anew. */
  begun() {
    const { value, data } = this.timeline;
    if (value && data && !value.linked) say("memviz:begun", this.state(value.key, data.meaning));
    if (this.isHeldBack) this.later();
    this.isHeldBack = false;
  }

  /** To how it was, as it was said then. @param {Said} said */
  async back(said) {
    const { timeline } = this;
    if (said.key !== timeline.value?.key) return;
    Object.assign(timeline, { pin: -1, range: said.range && [said.range[0] + 1, said.range[1] + 1] });
    this.take({ at: said.at, pin: said.pin, order: said.order, card: said.card || "" });
    if (said.colour !== timeline.data?.meaning) await timeline.setMeaning(said.colour);
    if (said.axis !== timeline.viewport.axis) await timeline.setAxis(said.axis);
    timeline.moves.to(said.sight);
  }

  /** @param {State} state */
  take(state) {
    const { timeline } = this;
    const { data, viewport } = timeline;
    if (!data) return;
    const { instants, count } = data.spans;
    if (isNumber(state.at)) timeline.moment = clamp(state.at + 1, 0, instants - 1);
    if (isNumber(state.from) && isNumber(state.to)) viewport.look(viewport.bounded(state.from + 1, state.to + 2));
    if (isNumber(state.low) && isNumber(state.high)) viewport.look(viewport.boundedBytes(state.low, state.high));
    if (isNumber(state.pin)) timeline.pin = clamp(state.pin, -1, count - 1);
    if (state.order) timeline.order = state.order;
    timeline.controls.order.select.value = timeline.order;
    if (state.card !== undefined) timeline.showCard(state.card);
    if (state.lit !== undefined) timeline.filters.lightUp(state.lit);
    if (state.axis === "time" && timeline.value?.has_times && viewport.axis !== "time") timeline.setAxis("time");
    else timeline.redraw();
  }
}
