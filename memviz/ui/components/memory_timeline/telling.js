// @ts-check
// What the timeline tells the rest of the page of what is seen and chosen, and how it takes such words back.
import { clamp, latest, say } from "../base.js";
import { bytesText } from "../words.js";
import { isNumber } from "./choosing.js";
import { Part } from "./part.js";

const TELL_MS = 90;

/** @typedef {import("./viewport.js").Axis} Axis */
/** @typedef {import("./data.js").Light} Light */
/** Where to start, in events: -1 is before the first. `low` and `high` are bytes, where not all of the height is seen.
 * @typedef {{ at?: number, pin?: number, from?: number, to?: number, low?: number | null, high?: number | null, order?: string, colour?: string, axis?: Axis, lit?: Light | null }} State */

/** @typedef {ReturnType<Telling["state"]>} Said */

export class Telling extends Part {
  waiting = 0;
  /** Something was chosen in a trace of which the page does not know yet that it is shown. */
  isHeldBack = false;
  /** What Python was told last. */
  told = "";
  tell = latest((state) => this.timeline.tell.select(state));

  /** Once it rests. */
  later() {
    clearTimeout(this.waiting);
    this.waiting = setTimeout(() => this.now(), TELL_MS);
  }

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

  /** To how it was, as it was said then.
   * @param {Said} said */
  async back(said) {
    const { timeline } = this;
    if (said.key !== timeline.value?.key) return;
    Object.assign(timeline, { pin: -1, range: said.range && [said.range[0] + 1, said.range[1] + 1] });
    this.take({ at: said.at, pin: said.pin, order: said.order });
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
    if (state.lit !== undefined) timeline.filters.lightUp(state.lit);
    if (state.axis === "time" && timeline.value?.has_times && viewport.axis !== "time") timeline.setAxis("time");
    else timeline.redraw();
  }
}
