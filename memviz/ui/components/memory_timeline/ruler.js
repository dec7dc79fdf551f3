// @ts-check
// A ruler between two points of the plot: how many bytes, events and how much time lie between them. Its ends are drawn to
// the edges of allocations, so that what is measured is theirs to the byte.
import { clamp, shape } from "../base.js";
import { bytesText, durationText, grouped } from "../words.js";
import { Part } from "./viewport.js";

/** How far an edge draws an end. */
const PULL_PIXELS = 5;
/** Of what is seen, for one press of a key. */
const KEY_STEP = 1 / 40;
const LETTER = 6.1;
const END_RADIUS = 3;

/** @import { Point } from "../base.js" */
/** `us` is where it was put on the axis of time, which may be between two events; `null` where its instant says all.
 * @typedef {{ instant: number, us: number | null, bytes: number }} End */

export class Ruler extends Part {
  /** @type {[End, End] | null} */ ends = null;
  node = shape("g", {});

  // -- its ends

  /** From a point of the plot to another one. @param {Point} start @param {Point} here */
  stretch(start, here) {
    if (this.timeline.data) this.set(this.endAt(start), this.endAt(here));
  }

  /** @param {End} near @param {End} far */
  set(near, far) {
    const { data } = this;
    this.ends = [near, far];
    this.timeline.interaction.hideTip();
    if (this.timeline.value?.has_times && !data.times) data.readTimes().then(() => this.timeline.redraw());
    this.timeline.redraw();
  }

  /** @returns {boolean} whether there was one */
  end() {
    const was = this.ends !== null;
    this.ends = null;
    if (was) this.timeline.redraw();
    return was;
  }

  /** @param {Point} point @returns {End} */
  endAt({ x, y }) {
    const { viewport } = this;
    const place = viewport.placeAt(clamp(x, 0, viewport.width));
    const { instant, us } = this.standing(place, PULL_PIXELS * ((viewport.last - viewport.first) / viewport.width));
    const bytes = viewport.bytesAt(y);
    const near = this.edges(instant).reduce((best, edge) => (Math.abs(edge - bytes) < Math.abs(best - bytes) ? edge : best), Infinity);
    const isNear = Math.abs(near - bytes) * viewport.height <= PULL_PIXELS * (viewport.top - viewport.bottom);
    return { instant, us, bytes: isNear ? near : Math.round(bytes) };
  }

  /** In width. An event that is near draws it there; in a pause without events it stays where it was put.
   * @param {number} place @param {number} near of the axis @returns {Omit<End, "bytes">} */
  standing(place, near) {
    const { viewport } = this;
    const instant = viewport.instantAt(place);
    const times = viewport.known();
    if (!times) return { instant, us: null };
    const nextTo = [instant, instant + 1].filter((each) => each < viewport.instants && Math.abs(viewport.placeOf(each) - place) <= near);
    const apart = (/** @type {number} */ each) => Math.abs(viewport.placeOf(each) - place);
    if (nextTo.length) return { instant: nextTo.reduce((best, each) => (apart(each) < apart(best) ? each : best)), us: null };
    return { instant, us: clamp(place, 0, times[times.length - 1]) };
  }

  /** Between the allocations of an instant, with the ground, the top of them all and what is reserved.
   * @param {number} instant */
  edges(instant) {
    const { data } = this;
    const edges = [0];
    for (const row of data.stackAt(instant, this.timeline.order !== "age")) edges.push(edges[edges.length - 1] + data.spans.size[row]);
    const reserved = data.spans.reservedUpTo(instant);
    return reserved > edges[edges.length - 1] ? [...edges, reserved] : edges;
  }

  // -- by keys

  /** Where no pointer has drawn one, it begins at the moment's total. */
  begin() {
    const { data, moment } = this.timeline;
    if (!data || this.ends) return;
    const here = { instant: moment, us: null, bytes: data.spans.live[moment] };
    this.set(here, { ...here });
    this.say();
  }

  /** The keys that it takes for itself while it is in hand.
   * @param {boolean} isShift @returns {Record<string, () => void>} */
  acts(isShift) {
    return {
      ArrowLeft: () => this.step(-1, isShift),
      ArrowRight: () => this.step(1, isShift),
      ArrowUp: () => this.climb(1),
      ArrowDown: () => this.climb(-1),
      Enter: () => this.moveFar((far) => far, true),
    };
  }

  /** @param {1 | -1} direction @param {boolean} isOneEvent */
  step(direction, isOneEvent) {
    const { viewport } = this;
    this.moveFar((far) => {
      const there = this.standing(this.placeOf(far) + direction * KEY_STEP * (viewport.last - viewport.first), 0);
      if (!isOneEvent && (there.us !== null || there.instant !== far.instant)) return { ...there, bytes: far.bytes };
      // From between two events the one before is as near as the one after.
      const next = far.us !== null && direction < 0 ? far.instant : far.instant + direction;
      return { instant: clamp(next, 0, viewport.instants - 1), us: null, bytes: far.bytes };
    });
  }

  /** @param {1 | -1} direction */
  climb(direction) {
    this.moveFar((far) => {
      const edges = this.edges(far.instant);
      const next = direction > 0 ? edges.find((edge) => edge > far.bytes) : edges.reverse().find((edge) => edge < far.bytes);
      return { ...far, bytes: next ?? far.bytes };
    });
  }

  /** @param {(far: End) => End} move @param {boolean} [isAnew] the near end comes along */
  moveFar(move, isAnew = false) {
    const { data, moves } = this.timeline;
    if (!this.ends || !data) return;
    const far = move(this.ends[1]);
    this.set(isAnew ? { ...far } : this.ends[0], far);
    moves.revealPlace(this.placeOf(far));
    moves.revealHeight({ bottom: far.bytes, top: far.bytes });
    this.say();
  }

  // -- what it says

  words() {
    if (!this.ends) return "";
    const [near, far] = this.ends;
    const events = Math.abs(far.instant - near.instant);
    const parts = [bytesText(Math.abs(far.bytes - near.bytes)), `${grouped(events)} ${events === 1 ? "event" : "events"}`];
    const [before, after] = [this.timeOf(near), this.timeOf(far)];
    if (before !== null && after !== null) parts.push(durationText(Math.abs(after - before)));
    return parts.join(" · ");
  }

  /** @param {End} end µs, if they are known */
  timeOf({ instant, us }) {
    const times = this.timeline.data?.times;
    return us ?? (times && times.length ? times[clamp(instant - 1, 0, times.length - 1)] : null);
  }

  /** @param {End} end */
  placeOf({ instant, us }) {
    return us !== null && this.viewport.known() ? us : this.viewport.placeOf(instant);
  }

  /** @param {End} end */
  xOf(end) {
    return end.us !== null && this.viewport.known() ? this.viewport.xOf(end.us) : this.viewport.xOfInstant(end.instant);
  }

  /** To those who do not see it, with every byte. */
  say() {
    if (!this.ends) return;
    const [near, far] = this.ends;
    this.timeline.live.textContent = `Ruler: ${this.words()}, exactly ${grouped(Math.abs(far.bytes - near.bytes))} B`;
  }

  // -- drawing

  draw() {
    const { ends, viewport } = this;
    if (!ends) return this.node.replaceChildren();
    const [a, b] = ends.map((end) => ({ x: this.xOf(end), y: viewport.yOf(end.bytes) }));
    const box = { x: Math.min(a.x, b.x), y: Math.min(a.y, b.y), width: Math.abs(a.x - b.x), height: Math.abs(a.y - b.y) };
    const inside = shape("g", { "clip-path": `url(#mvt-inside-${this.timeline.id})` });
    const dots = [a, b].map(({ x, y }) => shape("circle", { cx: x, cy: y, r: END_RADIUS, class: "mvt-dot" }));
    inside.append(shape("rect", { ...box, class: "mvt-measured" }), shape("line", { x1: a.x, y1: a.y, x2: b.x, y2: b.y, class: "mvt-halo" }), shape("line", { x1: a.x, y1: a.y, x2: b.x, y2: b.y, class: "mvt-measure" }), ...dots);
    this.node.replaceChildren(inside, ...this.label(b));
  }

  /** Beside its far end, within the plot. @param {Point} at */
  label({ x, y }) {
    const { width, height } = this.viewport;
    const words = this.words();
    const wide = words.length * LETTER + 16;
    const left = clamp(x + 10 + wide > width ? x - 10 - wide : x + 10, 0, Math.max(width - wide, 0));
    const upper = clamp(y - 26, 2, height - 24);
    return [
      shape("rect", { x: left, y: upper, width: wide, height: 20, rx: 4, class: "mvt-pill" }),
      shape("text", { x: left + wide / 2, y: upper + 14, class: "mvt-pilltext mvt-measurewords", "text-anchor": "middle" }, words),
    ];
  }
}
