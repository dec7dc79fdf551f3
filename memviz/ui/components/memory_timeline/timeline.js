// @ts-check
// One device's memory timeline: what it shows, what is chosen in it, and what it says to the rest of the page. Its parts
// lie beside this file; README.md says which, what comes in and what goes out.
import { Component, countPicture, el, isDark, mounting, onceQuiet, onModeChange, onSaid, refusalWords, say, token } from "../base.js";
import { cutMiddle, eventText } from "../words.js";
import { Ahead } from "./ahead.js";
import { PlotCanvas } from "./canvas.js";
import { FIRST_MEANING, isAtHand, keepPiece, piece, piecesAsked, TimelineData } from "./data.js";
import { HostLane } from "./host.js";
import { Interaction } from "./interaction.js";
import { Keys, KEYS_HELP } from "./keys.js";
import { Labels } from "./labels.js";
import { Filters, Legend } from "./legend.js";
import { Marks } from "./marks.js";
import { Moves } from "./moves.js";
import { Overview, Phases } from "./overview.js";
import { Ruler } from "./ruler.js";
import { Choosing, Telling } from "./telling.js";
import { Controls, Tools } from "./tools.js";
import { drawTotal, HEADROOM, Reading } from "./total.js";
import { Viewport } from "./viewport.js";

const SETTLE_MS = 120;
const NARROW = 640;
/** Up to this width of the window the inspector is a sheet; beside the plot it may not change what is above it. */
const SHEET = 900;
const NAME_LETTER = 7;
const ROOM = { left: 60, right: 110, upper: 12, lower: 30 };

/** @import { Alignment, Axis } from "./viewport.js" */
/** @import { Said, State } from "./telling.js" */
/** What memviz.ui.payloads.timelines.timeline_value makes; README.md says what each means.
 * @typedef {{
 *   key: string, label?: string, has_times?: boolean, phases?: [name: string, first: number, last: number][], marks?: [name: string, instant: number][],
 *   ooms?: { event: number, reserved: number, text: string }[], state?: State,
 *   isAhead?: boolean, linked?: string, plain?: boolean, badge?: string, name?: string, top?: number, band?: boolean, axis?: Axis,
 *   of?: string, follows?: string, ruler?: { bytes: number, text: string, is_limit?: boolean } | null, cards?: Record<string, number>, colour?: string, host?: import("./host.js").Host, among?: string[], align?: Record<Axis, Alignment>,
 * }} Value */

export class MemoryTimeline extends Component {
  /** @type {Value | null} */ value = null;
  /** @type {TimelineData | null} */ data = null;
  viewport = new Viewport();

  // What people choose, in instants and rows of the lifetimes.
  moment = 0;
  pin = -1;
  /** @type {[number, number] | null} */ range = null;
  order = "category";
  /** Whose memory is drawn as a line, where the trace itself says of none. */
  card = "";
  /** Which allocations keep their colour while the others are dimmed. @type {Uint8Array | null} */
  lit = null;

  // What is under way.
  /** Which `load` is the newest. */
  ticket = 0;
  /** Where it stands among others, when it was last placed anew. */
  placed = "";
  /** Nothing of it is on the screen. */
  isAway = true;
  isSharp = false;
  /** The allocations are to be drawn anew; else only what is written over them. */
  isStale = true;
  frame = 0;
  settle = onceQuiet(() => {
    this.isSharp = this.isStale = true;
    this.schedule();
  }, SETTLE_MS);
  /** Tokens of the page. Asking for a style is slow, so each is asked for once per mode.
   * @type {Record<string, string>} */
  tokens = {};

  // What it is made of.
  canvas = new this.kinds.Canvas(this);
  labels = new this.kinds.Labels(this);
  interaction = new this.kinds.Interaction(this);
  keys = new Keys(this);
  reading = new Reading(this);
  ahead = new Ahead(this);
  moves = new Moves(this);
  choosing = new Choosing(this);
  telling = new Telling(this);
  ruler = new Ruler(this);
  tools = new Tools(this);
  filters = new Filters(this);
  legend = new Legend(this);
  phases = new Phases(this);
  marks = new Marks(this);
  overview = new Overview(this);
  hostLane = new HostLane(this);
  controls = new Controls(this);
  title = el("div", { class: "mvt-title", hidden: "" });
  name = el("span", { class: "mvt-name" });
  plot = el("div", { class: "mvt-plot", tabindex: "0", role: "application", "aria-describedby": `mvt-keys-${this.id}` });
  live = el("div", { class: "mvt-hidden", "aria-live": "polite" });
  waiting = el("div", { class: "mvt-waiting", role: "status" });

  build() {
    this.root.className = "mvt";
    this.plot.append(this.canvas.node, this.labels.node, this.tools.box, this.tools.bytesAxis, this.tools.eventsAxis, this.tools.fullHeight, this.interaction.tip);
    const help = el("div", { class: "mvt-hidden", id: `mvt-keys-${this.id}` }, KEYS_HELP);
    const bar = el("div", { class: "mvt-bar" }, this.legend.node, this.controls.node);
    this.root.append(bar, this.title, this.overview.node, this.phases.node, this.plot, this.hostLane.node, help, this.live, this.waiting);
    this.listen();
  }

  /** Parts of which another timeline has kinds of its own. */
  get kinds() {
    return { Canvas: PlotCanvas, Labels, Interaction };
  }

  listen() {
    new ResizeObserver(() => this.resize()).observe(this.plot);
    onModeChange(() => {
      this.legend.forget();
      this.redraw(true);
      this.drawOverview();
    });
    this.interaction.listen(this.plot);
    this.plot.addEventListener("keydown", (event) => this.keys.press(event));
    this.tools.listen();
    this.filters.listen();
    this.legend.listen();
    const isLinkedAs = (/** @type {string} */ name) => Boolean(this.value?.linked) && this.value?.linked === name;
    const isAlone = () => this.value !== null && !this.value.linked;
    onSaid("memviz:picture", (parts) => this.value && this.data && !this.isAway && this.host.offsetParent && parts.push(this.part()));
    onSaid("memviz:light", (light) => isAlone() && this.root.isConnected && this.filters.lightUp(light));
    onSaid("memviz:lit", ({ linked, masks }) => {
      const bits = masks && this.value && masks[this.value.key];
      if (isLinkedAs(linked) && this.data) this.filters.showLight(bits ? this.data.maskOfBits(bits) : null);
    });
    onSaid("memviz:ruler", ({ linked, bytes }) => isLinkedAs(linked) && this.labels.drawRuler(bytes));
    onSaid("memviz:go", (place) => isAlone() && this.choosing.go(place));
    onSaid("memviz:state", (state) => this.value?.follows === state.key && this.follow(state));
    onSaid("memviz:ahead", ({ root, show, expect }) => root === this.root && (show ? this.ahead.show(show) : this.ahead.expect(expect)));
    onSaid("memviz:back", (said) => isAlone() && this.telling.back(said));
    onSaid("memviz:view", (view) => view.from !== this.id && isLinkedAs(view.linked) && this.moves.follow(view));
  }

  // -- a trace

  /** @param {Value | null} value */
  async load(value) {
    if (!value?.isAhead) delete this.root.dataset.ahead;
    if (!value || !value.key) {
      // Nothing is open yet; but what is being read is shown.
      if (this.reading.total) return;
      this.root.hidden = true;
      this.value = null;
      return;
    }
    const ticket = ++this.ticket;
    if (!value.isAhead) this.ahead.note(value);
    this.root.hidden = false;
    this.root.classList.toggle("mvt-plain", Boolean(value.plain));
    this.root.classList.toggle("mvt-follows", Boolean(value.follows));
    if (this.value && this.value.key === value.key) return this.update(value);
    this.waiting.textContent = this.reading.total ? "" : "Drawing the timeline…";
    try {
      const meaning = value.state?.colour || value.colour || FIRST_MEANING;
      const [timeline, groups] = await piecesAsked(this.server, value.key, meaning, value.among);
      if (ticket !== this.ticket) return;
      this.reading.over();
      this.waiting.textContent = "";
      this.start(value, new TimelineData(this.server, value.key, timeline, groups));
    } catch (error) {
      if (ticket === this.ticket) this.waiting.textContent = refusalWords("The timeline could not be drawn", error);
    }
  }

  /** @param {Value} value @param {TimelineData} data */
  start(value, data) {
    const { viewport } = this;
    this.data = data;
    const { spans } = data;
    this.take(value);
    Object.assign(viewport, { axis: "event", instants: spans.instants, times: null, first: 0, last: spans.instants, most: 0, bottom: 0, top: 0 });
    viewport.setMost(value.top || Math.max(spans.reservedPeak().bytes, spans.live[spans.peak], 1) * HEADROOM);
    Object.assign(this, { pin: -1, range: null, lit: null, placed: "", moment: spans.peak, card: "", isStale: true });
    this.keys.start();
    this.tools.end();
    this.filters.start();
    this.controls.meaning.select.value = data.meaning;
    this.controls.card.select.value = "";
    this.telling.take(value.state || {});
    this.controls.axes.show(viewport.axis);
    this.root.dataset.key = value.key;
    this.joinOthers();
    this.resize();
    if (!value.isAhead) this.telling.begun();
  }

  /** Shows the part of the run that another timeline shows, and its moment. Its height is its own.
   * @param {Said} said */
  async follow({ at, axis, sight }) {
    const { viewport } = this;
    if (axis !== viewport.axis) await this.setAxis(axis);
    viewport.look(viewport.bounded(sight.first, sight.last));
    this.telling.take({ at });
  }

  /** More is said of the trace that is shown. @param {Value} value */
  async update(value) {
    const wasAhead = this.value?.isAhead;
    const isRecoloured = value.linked && JSON.stringify([value.colour, value.among]) !== JSON.stringify([this.value?.colour, this.value?.among]);
    this.take(wasAhead ? value : { ...this.value, ...value });
    this.telling.take(value.state || {});
    if (isRecoloured) this.setMeaning(value.colour || FIRST_MEANING);
    this.joinOthers();
    if (!wasAhead) return;
    // What was drawn ahead is known to the page now.
    const colour = value.state?.colour;
    if (colour && colour !== this.data?.meaning) await this.setMeaning(colour);
    if (value === this.value) this.telling.begun();
  }

  /** @param {Value} value */
  take(value) {
    this.value = value;
    const { label, select } = this.controls.card;
    label.hidden = !value.cards;
    if (value.cards && !select.length) select.append(...["", ...Object.keys(value.cards)].map((name) => el("option", { value: name }, name || "no line")));
    this.viewport.align = (value.linked && value.align) || null;
    const { time } = this.controls.axes.buttons;
    Object.assign(time, { disabled: !value.has_times, title: value.has_times ? "" : "This trace has no times" });
    this.plot.setAttribute("aria-label", `Memory timeline. ${value.label || ""}`);
  }

  /** Nothing is shown of any trace, and what is under way for one comes too late. */
  close() {
    this.ticket++;
    [this.value, this.data] = [null, null];
  }

  // -- several that are linked: one byte scale, and axes that move together

  async joinOthers() {
    const { value, viewport } = this;
    if (!value) return;
    this.title.hidden = !value.badge && !value.follows;
    if (value.follows) this.title.replaceChildren(this.name);
    if (!value.linked || !value.align) return;
    if (value.badge) this.title.replaceChildren(el("span", { class: "mvt-badge" }, value.badge), this.name);
    viewport.setMost(value.top || viewport.most);
    const axis = value.align.time && value.axis === "time" ? "time" : "event";
    if (axis !== viewport.axis) await this.setAxis(axis);
    if (value !== this.value) return;
    const placed = JSON.stringify([value.linked, viewport.axis, value.align[viewport.axis]]);
    if (placed !== this.placed) {
      this.placed = placed;
      const [first, last] = value.align[viewport.axis].focus;
      viewport.look({ first: viewport.fromShared(first), last: viewport.fromShared(last) });
    }
    this.redraw(true);
    say("memviz:joined", { linked: value.linked });
  }

  // -- how it is shown

  /** @param {string} meaning of the colours */
  async setMeaning(meaning) {
    const { data } = this;
    if (!data) return;
    const groups = await piece(this.server, { key: data.key, piece: "groups", meaning, among: this.value?.among || [] });
    if (data !== this.data) return;
    data.colourBy(groups);
    this.controls.meaning.select.value = data.meaning;
    this.redraw(true);
    this.say();
  }

  /** @param {Axis} axis */
  async setAxis(axis) {
    const { data, viewport } = this;
    if (!data || axis === viewport.axis || (axis === "time" && !this.value?.has_times)) return;
    if (axis === "time") await data.readTimes();
    viewport.times = data.times;
    viewport.turnTo(axis);
    this.controls.axes.show(viewport.axis);
    this.drawOverview();
    this.redraw();
    this.say();
  }

  /** @param {string} card one that is offered, or none */
  showCard(card) {
    const { value, data, viewport } = this;
    const bytes = value?.cards?.[card] || 0;
    if (!value?.cards || !data) return;
    this.card = this.controls.card.select.value = bytes ? card : "";
    value.ruler = bytes ? { bytes, text: card, is_limit: true } : null;
    viewport.setMost(Math.max(data.spans.reservedPeak().bytes, data.spans.live[data.spans.peak], bytes, 1) * HEADROOM);
    this.redraw(true);
  }

  /** @param {Uint8Array | null} mask */
  showLit(mask) {
    this.lit = mask;
    this.redraw();
  }

  // -- drawing

  resize() {
    const { viewport, value } = this;
    const { clientWidth } = this.root;
    // Without a width it is not shown yet.
    this.root.classList.toggle("mvt-narrow", clientWidth > 0 && clientWidth < NARROW && innerWidth <= SHEET && !value?.linked);
    const [width, height] = [Math.floor(this.plot.clientWidth), Math.floor(this.plot.clientHeight)];
    this.isAway = !width || !height;
    if (this.reading.total) this.schedule();
    if (this.isAway || !this.data || !value || (!this.isStale && viewport.width === width && viewport.height === height)) return;
    Object.assign(viewport, { width, height });
    // The pointer is elsewhere in it now.
    this.interaction.hideTip();
    this.labels.resize();
    // Of linked ones, with what tells it from the others: names mostly differ at their ends.
    this.name.title = value.name || "";
    this.name.textContent = cutMiddle(this.name.title, Math.max(Math.floor(width / NAME_LETTER) - 4, 4));
    this.redraw(true);
    this.drawOverview();
  }

  drawOverview() {
    if (this.data && this.value && !this.value.plain) this.overview.draw();
  }

  /** @param {boolean} isSharp in the screen's own pixels, as it is anyway once the view rests */
  redraw(isSharp = false) {
    this.isStale = true;
    if (!this.viewport.width || !this.data || !this.value || this.isAway) return;
    this.isSharp = this.isSharp || isSharp;
    this.settle();
    this.schedule();
  }

  schedule() {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      if (this.reading.total) drawTotal(this, this.reading.total);
      else if (this.value && this.data) this.draw(this.value);
    });
  }

  /** @param {Value} value */
  draw(value) {
    const started = performance.now();
    if (this.isStale) this.canvas.draw(this.isSharp);
    this.isSharp = this.isStale = false;
    this.labels.draw();
    this.ruler.draw();
    this.tools.draw();
    this.controls.draw();
    this.overview.placeWindow();
    this.phases.draw();
    this.hostLane.draw();
    if (!value.plain) this.legend.draw();
    this.root.dataset.drawMs = (performance.now() - started).toFixed(2);
    countPicture(this.root);
  }

  /** @param {string} name */
  colour(name) {
    return (this.tokens[`${isDark()}${name}`] ??= token(this.root, name));
  }

  /** For a picture of the page. @returns {import("../picture.js").Part} */
  part() {
    this.canvas.draw(true);
    const { canvas, labels, value } = this;
    const { width, height } = this.viewport;
    const title = value?.badge ? `${value.badge} ${value.name || ""}` : "";
    return { nodes: [labels.node], canvas: { node: canvas.node, left: canvas.left, width: canvas.wide }, width, height, room: ROOM, title, keys: this.legend.keys() };
  }

  momentWords() {
    const moment = this.choosing.answered;
    if (this.viewport.isStill()) return "at the end";
    const peak = moment === this.data?.spans.peak ? "peak · " : this.range ? "range’s peak · " : "";
    return `${peak}${eventText(moment - 1)}`;
  }

  /** Tells the page what is seen and chosen. */
  say() {
    this.telling.later();
  }

  /** Under the pointer, in all that are linked: how many bytes this height is.
   * @param {number | null} bytes */
  sayRuler(bytes) {
    if (this.value?.linked) say("memviz:ruler", { bytes, linked: this.value.linked });
  }
}

// -- all of them

/** @type {Set<MemoryTimeline>} */
export const mounted = new Set();

/** @param {string} name */
export const linked = (name) =>
  [...mounted].filter(({ root, value, data }) => root.isConnected && value?.linked === name && data).sort((a, b) => ((a.value?.badge || "") < (b.value?.badge || "") ? -1 : 1));

onSaid("memviz:piece", ({ key, piece, made }) => {
  keepPiece(key, piece, made);
  for (const timeline of mounted) if (timeline.reading.total?.key === key && isAtHand(key)) timeline.load({ key });
});

const mountOne = mounting(MemoryTimeline);

/** @param {HTMLElement} host @param {import("../base.js").Gradio} gradio */
export function mount(host, gradio) {
  mounted.add(mountOne(host, gradio));
}
