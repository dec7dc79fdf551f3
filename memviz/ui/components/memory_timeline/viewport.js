// @ts-check
// What part of a trace a plot shows, and where in it a place, an instant and a number of bytes stand. A place counts
// instants on one axis and µs on the other. No DOM in this file.
import { clamp } from "../base.js";
import { grouped, roundStep, timeTick } from "../words.js";
import { lastNotAfter } from "./spans.js";

const SMALLEST_VIEW = 4;
const SHORTEST_US = 10;
/** The smallest block that PyTorch's allocator gives. */
const LEAST_BYTES = 512;
const TICK_ROOM = 150;
/** One step of a key or button. */
export const ZOOM = 1.6;

/** @typedef {"event" | "time"} Axis */
/** Of one axis: two places that stand where the others' two stand, what any of them has, and what to look at first.
 * @typedef {{ span: [number, number], extent: [number, number], focus: [number, number] }} Alignment */
/** @typedef {{ first: number, last: number }} Stretch */
/** Bytes at the lower and at the upper edge.
 * @typedef {{ bottom: number, top: number }} Height */
/** @typedef {Stretch & Height} Sight */

export class Viewport {
  /** @type {Axis} */ axis = "event";
  instants = 1;
  /** µs of each event, once they are known. @type {Float64Array | null} */
  times = null;
  /** For one that moves together with others. @type {Record<Axis, Alignment> | null} */
  align = null;
  first = 0;
  last = 1;
  /** Bytes at the edges, and at the upper one of all that there is. */
  bottom = 0;
  top = 1;
  most = 1;
  width = 0;
  height = 0;

  // -- what there is to see

  /** @returns {Stretch} */
  whole() {
    if (!this.align) return this.own();
    const { extent } = this.align[this.axis];
    return { first: this.fromShared(extent[0]), last: this.fromShared(extent[1]) };
  }

  /** Where this trace itself has something; linked ones may show more than that. @returns {Stretch} */
  own() {
    const times = this.known();
    return times ? { first: 0, last: Math.max(times[times.length - 1], 1) } : { first: 0, last: this.instants };
  }

  /** The times, if they are what the axis counts. */
  known() {
    return this.axis === "time" ? this.times : null;
  }

  isAll() {
    const whole = this.whole();
    return this.first <= whole.first && this.last >= whole.last;
  }

  isFullHeight() {
    return this.bottom <= 0 && this.top >= this.most;
  }

  /** What is seen of the height stays as it is, unless it was all of it. @param {number} most */
  setMost(most) {
    const seen = this.isFullHeight() ? { bottom: 0, top: most } : { bottom: this.bottom, top: this.top };
    this.most = most;
    this.look(this.boundedBytes(seen.bottom, seen.top));
  }

  /** Nothing was recorded but the state at the end: one moment, and no course of time. */
  isStill() {
    return this.instants === 1;
  }

  // -- what is seen of it

  /** What is not named stays. @param {Partial<Sight>} sight */
  look({ first = this.first, last = this.last, bottom = this.bottom, top = this.top }) {
    Object.assign(this, { first, last, bottom, top });
  }

  /** @returns {Sight} */
  sight() {
    const { first, last, bottom, top } = this;
    return { first, last, bottom, top };
  }

  /** As near to these places as there is something to see, and not too near.
   * @param {number} first @param {number} last @returns {Stretch} */
  bounded(first, last) {
    const whole = this.whole();
    const length = clamp(last - first, this.shortest(), whole.last - whole.first);
    const from = clamp(first, whole.first, whole.last - length);
    return { first: from, last: from + length };
  }

  shortest() {
    return Math.min(this.axis === "time" ? SHORTEST_US : SMALLEST_VIEW, this.whole().last);
  }

  /** The same for bytes: never nearer than that one block fills the height.
   * @param {number} bottom @param {number} top @returns {Height} */
  boundedBytes(bottom, top) {
    const length = clamp(top - bottom, this.lowest(), this.most);
    const from = clamp(bottom, 0, this.most - length);
    return { bottom: from, top: from + length };
  }

  lowest() {
    return Math.min(LEAST_BYTES, this.most);
  }

  /** The same instants stay in sight. @param {Axis} axis */
  turnTo(axis) {
    const [first, last] = [this.instantAt(this.first), this.lastInstant()];
    const isAll = first <= 0 && last >= this.instants - 1;
    this.axis = axis;
    // An instant's own column ends where the next one begins.
    this.look(isAll ? this.whole() : this.bounded(this.placeOf(first), this.placeOf(last) + (axis === "event" ? 1 : 0)));
  }

  // -- places

  /** @param {number} instant */
  placeOf(instant) {
    if (this.axis === "event") return instant;
    /** @type {ArrayLike<number>} */ const times = this.times || [];
    return times.length ? times[clamp(Math.ceil(instant) - 1, 0, times.length - 1)] : 0;
  }

  /** @param {number} place */
  instantAt(place) {
    const times = this.known();
    return times ? lastNotAfter(times, place) + 1 : clamp(Math.floor(place), 0, this.instants - 1);
  }

  /** The last one of which anything is seen. */
  lastInstant() {
    return this.known() ? this.instantAt(this.last) : clamp(Math.ceil(this.last) - 1, 0, this.instants - 1);
  }

  /** @param {number} place */
  xOf(place) {
    return ((place - this.first) / (this.last - this.first)) * this.width;
  }

  /** An instant fills its column; its line stands in the middle, as far as that can be told.
   * @param {number} instant */
  xOfInstant(instant) {
    return this.axis === "event" ? this.xOf(instant + 0.5) : this.xOf(this.placeOf(instant));
  }

  /** @param {number} x */
  placeAt(x) {
    return this.first + (x / this.width) * (this.last - this.first);
  }

  /** @param {number} bytes */
  yOf(bytes) {
    return this.height * (1 - (bytes - this.bottom) / (this.top - this.bottom));
  }

  /** @param {number} y */
  bytesAt(y) {
    return clamp(this.bottom + (this.top - this.bottom) * (1 - y / this.height), this.bottom, this.top);
  }

  /** @param {number} bytes */
  isHeightInSight(bytes) {
    return bytes >= this.bottom && bytes <= this.top;
  }

  // -- between several that are linked

  /** @param {number} share @returns {number} */
  fromShared(share) {
    const [begin, end] = this.shared();
    return begin + share * (end - begin);
  }

  /** @param {number} place @returns {number} */
  toShared(place) {
    const [begin, end] = this.shared();
    return (place - begin) / (end - begin);
  }

  shared() {
    return this.align ? this.align[this.axis].span : /** @type {[number, number]} */ ([0, 1]);
  }

  // -- the axis

  /** @returns {{ place: number, text: string }[]} */
  ticks() {
    const isEvent = this.axis === "event";
    const step = roundStep((this.last - this.first) / Math.max(this.width / TICK_ROOM, 2), isEvent ? 1 : 0.001);
    const own = this.own();
    // An event's own column begins where it has happened; the first one stands before them all.
    const shift = isEvent ? 1 : 0;
    const last = Math.min(this.last, own.last - shift);
    const begin = Math.ceil((Math.max(this.first, own.first + shift) - shift) / step);
    const ticks = [];
    for (let k = begin; k * step + shift <= last; k++) {
      const text = isEvent ? `${k === begin ? "event " : ""}${grouped(k * step)}` : timeTick(k * step, step);
      ticks.push({ place: k * step + shift, text });
    }
    return ticks;
  }
}

/** What all parts of the timeline have: the timeline itself, and what it shows of the trace. */
export class Part {
  /** @param {import("./timeline.js").MemoryTimeline} timeline */
  constructor(timeline) {
    this.timeline = timeline;
  }

  get viewport() {
    return this.timeline.viewport;
  }

  /** Of the trace that is drawn; nothing is drawn or pointed at without one. */
  get data() {
    return /** @type {import("./data.js").TimelineData} */ (this.timeline.data);
  }
}
