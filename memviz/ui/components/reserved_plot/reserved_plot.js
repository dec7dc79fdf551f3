// @ts-check
// Live bytes as an area, reserved bytes as lines over the same events: as recorded dashed, as replayed thick, the limit
// red, and a mark where memory runs out. The value is made by memviz/ui/what_if/plots.py.
import { byteRules, failureMark, groundLine, sideLabels, steppedPath, tickAt } from "../axes.js";
import { actOnKey, clamp, Component, countPicture, el, mounting, newTip, onSaid, pointIn, shape, showTip, switchOf } from "../base.js";
import { lastNotAfter } from "../memory_timeline/spans.js";
import { bytesText, eventText, grouped, roundStep, timeTick } from "../words.js";

const HEADROOM = 1.08;
const TICK_ROOM = 90;
const LETTER = 6.2;
const NARROW = 560;
const NOWHERE = -1;
const KEYS_HELP =
  "Left and right move along the events, Home and End go to the first and last, Enter shows the segments at that moment, Escape ends it, T changes the axis.";

/** @typedef {"event" | "time"} Axis */
/** Per column its first event, how many it holds, and most bytes in it; a line that ends early ran out of memory.
 * @typedef {{ first: number[], count: number[], live: number[], recorded: number[], lines: number[][], span: number }} Columns */
/** @typedef {{ axes: { event: Columns, time?: Columns }, events: number, at: number, label: string, names: string[], limit: number | null, stops: { event: number, text: string, reserved: number }[], ends: Ends }} Value */
/** Bytes after the last event; of a line that ran out before, none.
 * @typedef {{ live: number, recorded: number | null, lines: (number | null)[] }} Ends */

class ReservedPlot extends Component {
  /** @type {Value | null} */ value = null;
  /** @type {Axis} */ axis = "event";
  /** The column that is pointed at. */
  ruler = NOWHERE;
  width = 0;
  height = 0;
  /** Bytes at the upper edge. */
  top = 1;

  legend = el("div", { class: "mvr-legend", role: "list", "aria-label": "Line legend" });
  axes = switchOf("Axis", { event: "Event", time: "Time" }, (axis) => this.setAxis(axis));
  svg = shape("svg", { class: "mvt-svg", "aria-hidden": "true" });
  over = shape("svg", { class: "mvt-svg", "aria-hidden": "true" });
  tip = newTip();
  plot = el("div", { class: "mvt-plot mvr-plot", tabindex: "0", role: "application", "aria-describedby": `mvr-keys-${this.id}` });
  live = el("div", { class: "mvt-hidden", "aria-live": "polite" });

  build() {
    const help = el("div", { class: "mvt-hidden", id: `mvr-keys-${this.id}` }, KEYS_HELP);
    this.plot.append(this.svg, this.over, this.tip);
    this.root.className = "mvt mvr";
    this.root.hidden = true;
    this.root.append(el("div", { class: "mvt-bar" }, this.legend, this.axes.node), this.plot, help, this.live);
    new ResizeObserver(() => this.draw()).observe(this.plot);
    this.plot.addEventListener("pointermove", (event) => event.pointerType !== "touch" && this.point(this.columnAt(event)));
    this.plot.addEventListener("pointerleave", () => this.point(NOWHERE));
    this.plot.addEventListener("click", (event) => this.choose(this.columnAt(event)));
    this.plot.addEventListener("keydown", (event) => this.key(event));
    onSaid("memviz:picture", (parts) => this.value && this.host.offsetParent && parts.push(this.part()));
  }

  /** @returns {import("../picture.js").Part} */
  part() {
    const swatches = [...this.legend.children].map((key) => {
      const { backgroundColor, borderTopColor, borderTopStyle } = getComputedStyle(key.firstElementChild || key);
      const isLine = borderTopStyle !== "none";
      return /** @type {[string, string]} */ ([isLine ? borderTopColor : backgroundColor, `${key.textContent}${isLine && borderTopStyle !== "solid" ? " (dashed)" : ""}`]);
    });
    return { nodes: [this.svg, this.over], width: this.width, height: this.height, room: { left: 60, right: 110, upper: 12, lower: 30 }, keys: swatches };
  }

  /** @param {any} value */
  load(value) {
    this.value = value && value.axes ? /** @type {Value} */ (value) : null;
    this.root.hidden = !this.value;
    if (!this.value) return;
    const hasTime = Boolean(this.value.axes.time);
    if (!hasTime) this.axis = "event";
    Object.assign(this.axes.buttons.time, { disabled: !hasTime, title: hasTime ? "" : "This trace has no times" });
    this.ruler = NOWHERE;
    this.plot.setAttribute("aria-label", `Reserved memory over the run. ${this.value.label}`);
    this.showLegend(this.value);
    this.draw();
  }

  /** @param {Axis} axis */
  setAxis(axis) {
    if (!this.value?.axes[axis]) return;
    this.axis = axis;
    this.ruler = NOWHERE;
    this.draw();
  }

  /** @param {Value} value */
  showLegend({ names, limit, ends }) {
    const entry = (/** @type {string} */ kind, /** @type {string} */ words) =>
      el("span", { class: "mvr-key", role: "listitem" }, el("i", { class: `mvr-swatch mvr-${kind}`, "aria-hidden": "true" }), words);
    const replayed = names.map((name, i) => entry(i ? "thin" : "thick", `reserved, ${name}`));
    const limited = limit === null ? [] : [entry("limit", "limit")];
    const recorded = ends.recorded === null ? [] : [entry("dashed", "reserved, as recorded")];
    this.legend.replaceChildren(entry("live", "live"), ...recorded, ...replayed, ...limited);
  }

  // -- places

  /** Of the axis that is shown; nothing is drawn or pointed at without a value. */
  get columns() {
    const { axes } = /** @type {Value} */ (this.value);
    return axes[this.axis] || axes.event;
  }

  /** @param {MouseEvent} event */
  columnAt(event) {
    if (!this.value) return NOWHERE;
    const { first } = this.columns;
    return clamp(Math.floor((pointIn(this.plot, event).x / this.plot.getBoundingClientRect().width) * first.length), 0, first.length - 1);
  }

  /** @param {number} column */
  xOf(column) {
    return (column / this.columns.first.length) * this.width;
  }

  /** @param {number} bytes */
  yOf(bytes) {
    return this.height * (1 - bytes / this.top);
  }

  // -- drawing

  draw() {
    const { value } = this;
    [this.width, this.height] = [Math.floor(this.plot.clientWidth), Math.floor(this.plot.clientHeight)];
    if (!value || !this.width || !this.height) return;
    this.root.classList.toggle("mvt-narrow", this.root.clientWidth < NARROW);
    this.axes.show(this.axis);
    const { columns } = this;
    const most = (/** @type {number[]} */ values) => values.reduce((a, b) => Math.max(a, b), 0);
    this.top = Math.max(most(columns.live), most(columns.recorded), ...columns.lines.map(most), value.limit || 0, 1) * HEADROOM;
    for (const svg of [this.svg, this.over]) svg.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
    const rules = byteRules(this.top, this, (bytes) => this.yOf(bytes));
    this.svg.replaceChildren(...rules, groundLine(this), ...this.ticks(value), ...this.lines(value), ...this.stops(value), ...this.labels(value));
    this.drawRuler();
    countPicture(this.root);
  }

  /** @param {Value} value */
  ticks({ events }) {
    const { columns } = this;
    const isEvent = this.axis === "event";
    const end = isEvent ? events : columns.span + 1;
    const step = roundStep((isEvent ? events : columns.span) / Math.max(this.width / TICK_ROOM, 2), 1);
    const ticks = [];
    for (let at = 0; at < end; at += step) {
      if (isEvent) ticks.push(tickAt(this.xOf(columnOf(at, columns)), `${at ? "" : "event "}${grouped(at)}`, this));
      else ticks.push(tickAt((at / Math.max(columns.span, 1)) * this.width, timeTick(at, step), this));
    }
    return ticks.flat();
  }

  /** @param {Value} value @returns {SVGElement[]} */
  lines({ limit }) {
    const { columns } = this;
    const path = (/** @type {number[]} */ values) => steppedPath(values.length, (column) => this.xOf(column), (column) => this.yOf(values[column]));
    const parts = [shape("path", { d: `${path(columns.live)}V${this.height}H0Z`, class: "mvr-area" })];
    if (columns.recorded.length) parts.push(shape("path", { d: path(columns.recorded), class: "mvr-line mvr-line-dashed" }));
    columns.lines.forEach((values, i) => parts.push(shape("path", { d: path(values), class: `mvr-line mvr-line-${i ? "thin" : "thick"}` })));
    if (limit === null) return parts;
    const y = this.yOf(limit);
    return [...parts, shape("line", { x1: 0, x2: this.width, y1: y, y2: y, class: "mvr-limit-line" })];
  }

  /** On the limit, with words beside it. Two that are close write at different heights.
   * @param {Value} value */
  stops({ stops, limit }) {
    return stops.flatMap(({ event, text, reserved }, i) => {
      const x = clamp(this.xOf(columnOf(event, this.columns) + 0.5), 0, this.width);
      const isRight = x + 20 + text.length * LETTER > this.width;
      const place = { x: x + (isRight ? -8 : 8), y: this.height - 10 - 18 * i, "text-anchor": isRight ? "end" : "start" };
      return [...failureMark(x, this.yOf(limit ?? reserved), this.height), shape("text", { ...place, class: "mvt-oomtext" }, text)];
    });
  }

  /** @param {Value} value */
  labels({ limit, ends }) {
    const label = (/** @type {number} */ bytes, /** @type {string} */ words, look = "") => /** @type {import("../axes.js").Label} */ ([this.yOf(bytes), bytesText(bytes), words, look]);
    const marks = ends.recorded === null ? [] : [label(ends.recorded, "recorded, end")];
    if (limit !== null) marks.push(label(limit, "limit", " mvr-red"));
    ends.lines.forEach((bytes, i) => bytes !== null && marks.push(label(bytes, i ? "compared, end" : "replayed, end")));
    marks.push(label(ends.live, "live, end"));
    return sideLabels(marks, this, 11);
  }

  // -- what people do

  /** @param {number} column */
  point(column) {
    this.ruler = column;
    this.drawRuler();
    this.tip.hidden = column < 0 || !this.value;
    if (this.tip.hidden) return;
    const rows = this.figuresOf(column).map(([figure, words]) => el("div", {}, el("b", {}, figure), ` ${words}`));
    // At the top, however high it is.
    showTip(this.tip, { x: this.xOf(column + 0.5), y: -6 }, { width: this.width, height: Infinity }, [el("div", {}, columnWords(column, this.columns)), ...rows]);
  }

  drawRuler() {
    const { value } = this;
    if (!value || !this.width) return;
    const at = clamp(this.xOf(columnOf(value.at, this.columns) + 0.5), 0, this.width);
    const x = this.xOf(this.ruler + 0.5);
    const ruler = this.ruler < 0 ? [] : [shape("line", { x1: x, x2: x, y1: 0, y2: this.height, class: "mvt-moment" })];
    this.over.replaceChildren(shape("path", { d: `M${at - 5},${this.height + 9}h10l-5,-7z`, class: "mvt-peak" }), ...ruler);
  }

  /** The event of a column that reserves most in it is not known here; its last one is the state that is left.
   * @param {number} column */
  choose(column) {
    if (!this.value || column < 0) return;
    const at = lastEventOf(column, this.columns);
    this.value = { ...this.value, at };
    this.drawRuler();
    this.tell.select({ at });
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const { value } = this;
    if (!value) return;
    const last = this.columns.first.length - 1;
    const from = this.ruler < 0 ? columnOf(value.at, this.columns) : this.ruler;
    const step = event.shiftKey ? 10 : 1;
    const walk = (/** @type {number} */ to) => () => {
      const column = clamp(to, 0, last);
      this.point(column);
      this.live.textContent = [columnWords(column, this.columns), ...this.figuresOf(column).map((row) => row.join(" "))].join(", ");
    };
    actOnKey(event, {
      ArrowLeft: walk(from - step),
      ArrowRight: walk(from + step),
      Home: walk(0),
      End: walk(last),
      Enter: () => this.choose(from),
      Escape: () => this.point(NOWHERE),
      t: () => this.setAxis(this.axis === "event" ? "time" : "event"),
    });
  }

  /** @param {number} column @returns {[figure: string, words: string][]} */
  figuresOf(column) {
    const { live, recorded, lines } = this.columns;
    const replayed = lines.map((values, i) => /** @type {[string, string]} */ (column < values.length ? [bytesText(values[column]), `reserved, ${this.value?.names[i]}`] : ["out of memory", this.value?.names[i]]));
    const known = column < recorded.length ? [/** @type {[string, string]} */ ([bytesText(recorded[column]), "reserved, as recorded"])] : [];
    return [[bytesText(live[column]), "live"], ...known, ...replayed];
  }
}

/** The column that holds an event: the last one that begins no later.
 * @param {number} event @param {Columns} columns */
export const columnOf = (event, { first }) => Math.max(lastNotAfter(first, event), 0);

/** @param {number} column @param {Columns} columns */
const lastEventOf = (column, { first, count }) => first[column] + Math.max(count[column], 1) - 1;

/** @param {number} column @param {Columns} columns */
function columnWords(column, columns) {
  const [first, last] = [columns.first[column], lastEventOf(column, columns)];
  return last > first ? `events ${grouped(Math.max(first, 0))} to ${grouped(last)}, at most` : eventText(last);
}

export const mount = mounting(ReservedPlot);
