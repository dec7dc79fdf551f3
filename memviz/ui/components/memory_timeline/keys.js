// @ts-check
// What the keys do while the plot has the focus.
import { clamp, plainKey } from "../base.js";
import { bytesText } from "../words.js";
import { Part, ZOOM } from "./viewport.js";

export const KEYS_HELP =
  "Left and right pan, plus and minus zoom, W and S zoom the height, Shift with up or down moves in it, V fits it to the pinned allocation, 0 shows all, P goes to the peak, Shift with left or right moves one event, up and down move through the allocations, Enter pins, Escape undoes, T changes the axis, B zooms into a dragged box, M starts a ruler whose end the arrows move: up and down to the next edge, Enter restarts it there.";
const PAN = 0.1;
const FAR = 1e9;
const NOWHERE = -1;

export class Keys extends Part {
  /** Where in the stack of the moment a person has walked to, and which allocation that is. */
  place = NOWHERE;
  walked = NOWHERE;
  /** The range that was marked last. It goes as the moment moves on, to where its other end shall be.
   * @type {[number, number] | null} */
  marked = null;

  /** The trace is another one. */
  start() {
    this.walked = NOWHERE;
    this.marked = null;
    this.forget();
  }

  /** The stack is another one. */
  forget() {
    this.place = NOWHERE;
  }

  /** @param {KeyboardEvent} event */
  press(event) {
    const { data, ruler, tools } = this.timeline;
    const own = tools.tool === "ruler" ? ruler.acts(event.shiftKey) : {};
    const act = data && { ...this.acts(event.shiftKey), ...own }[plainKey(event)];
    if (!act) return;
    event.preventDefault();
    if (act() === true) event.stopPropagation();
  }

  /** @param {boolean} isShift @returns {Record<string, () => unknown>} */
  acts(isShift) {
    const { timeline } = this;
    const zoom = (/** @type {number} */ factor) => () => timeline.moves.zoom(timeline.moves.middle(), factor, true);
    const zoomHeight = (/** @type {number} */ factor) => () => timeline.moves.zoomHeight(timeline.moves.middleBytes(), factor, true);
    const upwards = (/** @type {1 | -1} */ step) => () => (isShift ? timeline.moves.shift(0, step * PAN) : this.walk(step));
    const sideways = (/** @type {number} */ step) => () => (isShift ? timeline.choosing.setMoment(timeline.moment + step) : timeline.moves.shift(step * PAN));
    return {
      ArrowLeft: sideways(-1),
      ArrowRight: sideways(1),
      ArrowUp: upwards(1),
      ArrowDown: upwards(-1),
      Home: () => timeline.moves.shift(-FAR),
      End: () => timeline.moves.shift(FAR),
      PageUp: () => this.nextPhase(-1),
      PageDown: () => this.nextPhase(1),
      "+": zoom(1 / ZOOM),
      "=": zoom(1 / ZOOM),
      "-": zoom(ZOOM),
      w: zoomHeight(1 / ZOOM),
      s: zoomHeight(ZOOM),
      0: () => timeline.moves.showAll(),
      f: () => this.fit(),
      v: () => timeline.moves.fitHeight(),
      b: () => timeline.tools.take("box"),
      m: () => {
        timeline.tools.take("ruler");
        timeline.ruler.begin();
      },
      p: () => timeline.choosing.toPeak(),
      t: () => !timeline.value?.linked && timeline.setAxis(timeline.viewport.axis === "event" ? "time" : "event"),
      "[": () => this.mark(0),
      "]": () => this.mark(1),
      Enter: () => {
        if (this.walked < 0) return;
        timeline.choosing.togglePin(this.walked);
        // The inspector says the same, and more.
        timeline.interaction.hideTip();
      },
      Escape: () => timeline.choosing.undo(),
    };
  }

  /** What is chosen fills the plot. */
  fit() {
    const { timeline } = this;
    const { viewport, range, pin, data } = timeline;
    if (range) return timeline.moves.glide({ first: viewport.placeOf(range[0]), last: viewport.placeOf(range[1]) }, true);
    if (pin < 0 || !data) return;
    const { start, end, instants } = data.spans;
    const [a, b] = [viewport.placeOf(start[pin]), viewport.placeOf(Math.min(end[pin], instants))];
    timeline.moves.glide({ first: a - (b - a) * 0.1, last: b + (b - a) * 0.1 }, true);
  }

  /** The moment becomes an end of the range. The other one stays, if it lies on that side.
   * @param {0 | 1} side */
  mark(side) {
    const { timeline, marked } = this;
    const { moment, choosing, viewport } = timeline;
    const last = viewport.instants - 1;
    const [begin, end] = timeline.range || marked || [0, last];
    this.marked = side ? [begin < moment ? begin : 0, moment] : [moment, end > moment ? end : last];
    choosing.showRange(...this.marked);
    timeline.say();
  }

  /** @param {1 | -1} step */
  nextPhase(step) {
    const { moment, value } = this.timeline;
    const begins = [...new Set([...(value?.phases || []), ...(value?.marks || [])].map(([, first]) => first))].sort((a, b) => a - b);
    const next = step > 0 ? begins.find((begin) => begin > moment) : begins.reverse().find((begin) => begin < moment);
    if (next !== undefined) this.timeline.choosing.setMoment(next);
  }

  /** Up or down in the stack of the moment; what stands there is said. @param {1 | -1} step */
  walk(step) {
    const { timeline } = this;
    const { data } = timeline;
    const stack = data ? [...data.stackAt(timeline.choosing.answered, timeline.order !== "age")] : [];
    if (!data || !stack.length) return;
    const at = this.place < 0 ? stack.indexOf(timeline.pin) : this.place;
    this.place = clamp(at + step, 0, stack.length - 1);
    this.walked = stack[this.place];
    this.sayWalked();
    // Sites come once, when somebody first asks: then it is said anew, with its site.
    if (!data.sites) data.readSites().then(() => timeline.data === data && this.place >= 0 && timeline.pin !== this.walked && this.sayWalked());
  }

  sayWalked() {
    const { timeline, walked, data } = this;
    const bytes = [bytesText(data.spans.size[walked]), data.siteOf(walked)].filter(Boolean).join(" ");
    const words = `${bytes}, ${data.groupWords(walked)}`;
    timeline.live.textContent = words;
    const x = clamp(timeline.viewport.xOfInstant(timeline.choosing.answered), 0, timeline.viewport.width);
    timeline.interaction.showTip({ x, y: 10 }, [[words]]);
  }
}
