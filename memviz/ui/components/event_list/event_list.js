// @ts-check
// Every event of one device as a list that stays fluid: only the rows in sight are in the page, their texts come a
// page at a time. README.md beside this file says what comes in and what goes out.
import { actOnKey, clamp, el, Follower, mounting, nearest, onceQuiet, refusalWords, say } from "../base.js";
import { grouped } from "../words.js";

// Where what stands in a line, in the order of EventRow's fields.
const [EVENT, TIME, ACTION, BYTES, EXACT, ADDRESS, STREAM, POOL, SITE, ANNOTATION, LOOK] = Array(11).keys();
const TITLED = [SITE, ANNOTATION, STREAM];
const WIDE = 620;

/** @typedef {(number | string)[]} Line */
/** What memviz.ui.payloads.event_rows.list_value makes.
 * @typedef {{ key: string, at: number, count: number, actions: [action: number, name: string, count: number][], has_times: boolean, has_annotations: boolean, many_streams: boolean, many_pools: boolean }} Value */
/** `from`: the least width of the list at which it is shown.
 * @typedef {{ name: string, cell: number, width: string, number?: boolean, code?: boolean, from: (value: Value) => number }} Column */

/** @type {Column[]} */
const COLUMNS = [
  { name: "Event", cell: EVENT, width: "76px", number: true, from: () => 0 },
  { name: "Time, ms", cell: TIME, width: "92px", number: true, from: (value) => (value.has_times ? WIDE : Infinity) },
  { name: "Action", cell: ACTION, width: "minmax(96px, 124px)", from: () => 0 },
  { name: "Bytes", cell: BYTES, width: "84px", number: true, from: () => 0 },
  { name: "Address", cell: ADDRESS, width: "122px", code: true, from: () => WIDE },
  { name: "Stream", cell: STREAM, width: "minmax(44px, 76px)", number: true, from: (value) => (value.many_streams ? WIDE : 940) },
  { name: "Pool", cell: POOL, width: "56px", from: (value) => (value.many_pools ? WIDE : 940) },
  { name: "Site", cell: SITE, width: "minmax(110px, 3fr)", code: true, from: () => 0 },
  { name: "Annotation", cell: ANNOTATION, width: "minmax(90px, 2fr)", from: (value) => (value.has_annotations ? 860 : Infinity) },
];

/** @param {Column} column */
const classOf = (column) => `mve-${column.name.toLowerCase().replace(/\W.*/, "")}${column.number ? " mve-number" : ""}`;

/** @param {Line} line */
const eventOf = (line) => Number(line[EVENT]);

/** @param {HTMLElement} node @param {Column} column @param {Line | undefined} line @param {string} event until the line is there */
function write(node, { cell }, line, event) {
  node.removeAttribute("title");
  if (!line) return void (node.textContent = cell === EVENT ? event : cell === SITE ? "…" : "");
  const text = cell === EVENT ? grouped(eventOf(line)) : String(line[cell]);
  node.textContent = cell === ACTION && line[LOOK] === "oom" ? `✗ ${text}` : text;
  if (cell === BYTES) node.title = String(line[EXACT]);
  else if (TITLED.includes(cell)) node.title = text;
}

// -- scrolling a list that is taller than browsers let an element be

/** Browsers cut elements off somewhere above ten million pixels, without a word. */
const TALLEST = 8_000_000;
/** Near both ends a pixel of the scroll bar is a pixel of the list, however long the list is. */
const EDGE = 200_000;

/** Between the scroll bar's pixels and the list's, where the list is taller than an element may be. */
export class Scale {
  /** @param {number} total pixels of the whole list @param {number} view those in sight */
  constructor(total, view) {
    this.height = Math.min(total, TALLEST);
    this.lastBar = Math.max(this.height - view, 0);
    this.lastTop = Math.max(total - view, 0);
    this.isPlain = total <= TALLEST;
    this.speed = (this.lastTop - 2 * EDGE) / Math.max(this.lastBar - 2 * EDGE, 1);
  }

  /** @param {number} bar */
  topOf(bar) {
    if (this.isPlain || bar <= EDGE) return bar;
    if (bar >= this.lastBar - EDGE) return this.lastTop - (this.lastBar - bar);
    return EDGE + (bar - EDGE) * this.speed;
  }

  /** @param {number} top */
  barOf(top) {
    if (this.isPlain || top <= EDGE) return top;
    if (top >= this.lastTop - EDGE) return this.lastBar - (this.lastTop - top);
    return EDGE + (top - EDGE) / this.speed;
  }
}

const PAGE = 200;
const MOST_PAGES = 60;
const MOST_ASKED = 2;
const ROW = 24;
const NARROW_ROW = 34;
const NARROW = 620;
const SETTLE_MS = 150;
const TYPED_MS = 150;
const GRID_LABEL = "Events; arrows move, Enter shows the event in the timeline";

/** Where an event stands in the list as it is filtered, and how long that is.
 * @typedef {{ row: number, is_there: boolean, count: number }} Place */
/** An element that shows one row after another; `said` is what it shows now.
 * @typedef {{ node: HTMLElement, cells: HTMLElement[], said: string, row: number }} Slot */

class EventList extends Follower {
  /** @type {Value | null} */ value = null;
  /** The moment's event, and where it stands. */
  at = -1;
  /** @type {Place} */ place = { row: 0, is_there: false, count: 0 };
  // What is let through.
  /** @type {number[]} */ actions = [];
  text = "";

  // The list as it is filtered now.
  count = 0;
  cursor = 0;
  /** @type {number | null} */ wanted = null;
  /** @type {Map<number, Line[]>} */ pages = new Map();
  /** @type {Set<number>} */ asked = new Set();
  generation = 0;
  ticket = 0;

  // Where it is scrolled to, in the list's own pixels.
  top = 0;
  view = 0;
  row = ROW;
  /** @type {Scale | null} */ scale = null;
  /** As the scroll bar has it. */
  scrolledTo = 0;

  // What is drawn.
  /** @type {Column[]} */ shown = [];
  /** @type {Slot[]} */ slots = [];
  frame = 0;
  settle = onceQuiet(() => this.scale && this.setTop(this.top, this.scale), SETTLE_MS);

  find = el("input", { type: "search", class: "mve-find", placeholder: "Site or annotation", "aria-label": "Find by site or annotation", maxlength: "200" });
  kinds = el("div", { class: "mve-kinds", role: "group", "aria-label": "Kinds of event" });
  total = el("span", { class: "mve-total", role: "status" });
  bar = el("div", { class: "mve-bar" }, this.find, this.kinds, this.total);
  header = el("div", { class: "mve-row mve-header", role: "row", "aria-rowindex": "1" });
  rows = el("div", { class: "mve-rows", role: "presentation" });
  sizer = el("div", { class: "mve-sizer", role: "presentation" });
  scroller = el("div", { class: "mve-scroll", role: "rowgroup", tabindex: "0" }, this.rows, this.sizer);
  grid = el("div", { class: "mve-grid", role: "grid", tabindex: "0", "aria-label": GRID_LABEL }, this.header, this.scroller);
  nothing = el("p", { class: "mve-nothing", hidden: "" });

  build() {
    super.build();
    this.root.className = "mve";
    this.root.hidden = true;
    this.root.append(this.bar, this.grid, this.nothing);
    new ResizeObserver(() => this.resized()).observe(this.scroller);
    this.scroller.addEventListener("scroll", () => this.scrolled());
    this.scroller.addEventListener("click", (event) => this.clicked(event));
    this.grid.addEventListener("keydown", (event) => this.keyed(event));
    this.find.addEventListener("input", onceQuiet(() => this.choose({ text: this.find.value.trim() }), TYPED_MS));
  }

  /** Taken out of the page, an element forgets where it was scrolled to. */
  attach() {
    const isAnew = super.attach();
    if (isAnew && this.scale) this.setTop(this.top, this.scale);
    return isAnew;
  }

  // -- what to show

  /** @param {Value} value */
  start(value) {
    Object.assign(this, { key: value.key, value, heard: -Infinity, at: value.at, actions: [], text: "", scale: null, shown: [] });
    this.find.value = "";
    this.showKinds(value);
    this.renew({ count: value.count, row: Math.max(value.at, 0), is_there: value.at >= 0 }, value);
  }

  /** @param {Value} value */
  showKinds({ actions }) {
    const chip = (/** @type {number} */ action, /** @type {(Node | string)[]} */ ...words) =>
      el("button", { type: "button", class: "mve-kind", "aria-pressed": "false", onclick: (/** @type {any} */ { currentTarget }) => this.toggle(action, currentTarget) }, ...words);
    this.kinds.replaceChildren(...actions.map(([action, name, count]) => chip(action, `${name} `, el("b", {}, grouped(count)))));
  }

  /** @param {number} action @param {HTMLElement} chip */
  toggle(action, chip) {
    const isOn = this.actions.includes(action);
    chip.setAttribute("aria-pressed", String(!isOn));
    this.choose({ actions: isOn ? this.actions.filter((chosen) => chosen !== action) : [...this.actions, action] });
  }

  get isFiltered() {
    return Boolean(this.actions.length || this.text);
  }

  /** @param {{ actions?: number[], text?: string }} filter */
  async choose({ actions = this.actions, text = this.text }) {
    const { value } = this;
    if (!value || (actions === this.actions && text === this.text)) return;
    [this.actions, this.text] = [actions, text];
    const place = await this.placeOf(this.at, value);
    if (place) this.renew(place, value);
  }

  /** @param {Record<string, number>} more */
  request(more) {
    return { key: this.key, actions: this.actions, text: this.text, ...more };
  }

  /** Where an event stands in the list as it is filtered now; null when something else was asked for meanwhile.
   * @param {number} at @param {Value} value @returns {Promise<Place | null>} */
  async placeOf(at, value) {
    if (!this.isFiltered) return { row: Math.max(at, 0), is_there: at >= 0, count: value.count };
    const ticket = ++this.ticket;
    this.root.dataset.choosing = "1";
    try {
      const place = await this.server.event_place(this.request({ at }));
      return ticket === this.ticket ? place : null;
    } catch (error) {
      this.refused(error);
      return null;
    } finally {
      if (ticket === this.ticket) delete this.root.dataset.choosing;
    }
  }

  /** @param {unknown} error */
  refused(error) {
    this.total.textContent = refusalWords("The events could not be read", error);
  }

  /** Another list: other rows under the same numbers. @param {Place} place @param {Value} value */
  renew(place, { count: all }) {
    this.generation++;
    this.ticket++;
    this.pages = new Map();
    this.asked = new Set();
    this.count = place.count;
    this.stand(place);
    this.bar.hidden = !all;
    this.total.textContent = this.isFiltered ? `${grouped(this.count)} of ${grouped(all)} events` : `${grouped(all)} events`;
    this.grid.setAttribute("aria-rowcount", String(this.count + 1));
    this.grid.hidden = !this.count;
    this.nothing.hidden = Boolean(this.count);
    this.nothing.textContent = all ? "No event matches. Clear the text, or select other kinds." : "This file has no events, only memory at one moment.";
    this.top = 0;
    this.scale = null;
    this.resized();
  }

  /** @param {Place} place */
  stand(place) {
    this.place = place;
    this.cursor = clamp(place.row, 0, Math.max(this.count - 1, 0));
    this.wanted = this.cursor;
  }

  /** The moment changed elsewhere: its event comes into sight and is marked.
   * @param {{ at: number }} state */
  async follow({ at }) {
    if (!this.value || !Number.isFinite(at) || at === this.at) return;
    this.at = at;
    const place = await this.placeOf(at, this.value);
    if (!place || at !== this.at) return;
    this.stand(place);
    this.reveal();
    this.render();
  }

  // -- scrolling

  resized() {
    const view = this.scroller.clientHeight;
    if (!view || !this.value || !this.count) return;
    const isNarrow = this.root.clientWidth < NARROW;
    const before = this.scale ? this.top / this.row : 0;
    this.row = isNarrow ? NARROW_ROW : ROW;
    this.root.classList.toggle("mve-narrow", isNarrow);
    this.view = view;
    this.scale = new Scale(this.count * this.row, view);
    this.sizer.style.height = `${this.scale.height}px`;
    this.root.style.setProperty("--mve-scrollbar", `${this.scroller.offsetWidth - this.scroller.clientWidth}px`);
    this.showColumns(this.value);
    this.setTop(before * this.row, this.scale);
    this.reveal();
    this.render();
  }

  /** Into the middle, unless it can be seen already. A list that is not shown remembers it. */
  reveal() {
    if (this.wanted === null || !this.scale || !this.scroller.clientHeight) return;
    const y = this.wanted * this.row;
    this.wanted = null;
    if (y < this.top || y + this.row > this.top + this.view) this.setTop(y - (this.view - this.row) / 2, this.scale);
  }

  /** @param {number} top @param {Scale} scale */
  setTop(top, scale) {
    this.top = clamp(top, 0, scale.lastTop);
    this.scroller.scrollTop = scale.barOf(this.top);
    this.scrolledTo = this.scroller.scrollTop;
  }

  scrolled() {
    const { scale } = this;
    if (!scale) return;
    const bar = this.scroller.scrollTop;
    const step = bar - this.scrolledTo;
    if (!step) return;
    this.scrolledTo = bar;
    // A long list moves as far as wheel or finger did; only the scroll bar itself goes by shares of the whole.
    const isNear = Math.abs(step) <= 4 * this.view && bar > 0 && bar < scale.lastBar;
    this.top = clamp(scale.isPlain || !isNear ? scale.topOf(bar) : this.top + step, 0, scale.lastTop);
    if (!scale.isPlain) this.settle();
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      this.render();
    });
  }

  // -- drawing

  /** @param {Value} value */
  showColumns(value) {
    const columns = COLUMNS.filter((column) => column.from(value) <= this.root.clientWidth);
    if (columns.length === this.shown.length && columns.every((column, i) => column === this.shown[i])) return;
    this.shown = columns;
    this.root.style.setProperty("--mve-columns", columns.map((column) => column.width).join(" "));
    this.grid.setAttribute("aria-colcount", String(columns.length));
    this.header.replaceChildren(...columns.map((column) => el("span", { role: "columnheader", class: classOf(column) }, column.name)));
    this.rows.replaceChildren();
    this.slots = [];
  }

  /** @param {number} row */
  slot(row) {
    const needed = Math.ceil(this.view / this.row) + 2;
    while (this.slots.length < needed) {
      const cells = this.shown.map((column) => el("span", { role: "gridcell", class: `${classOf(column)}${column.code ? " mve-code" : ""}` }));
      const node = el("div", { class: "mve-row", role: "row", id: `mve-${this.id}-${this.slots.length}` }, ...cells);
      this.rows.append(node);
      this.slots.push({ node, cells, said: "", row: -1 });
    }
    return this.slots[row % this.slots.length];
  }

  render() {
    if (!this.scale || !this.view) return;
    const started = performance.now();
    const first = Math.floor(this.top / this.row);
    const last = Math.min(Math.ceil((this.top + this.view) / this.row), this.count);
    const used = new Set();
    for (let row = first; row < last; row++) used.add(this.fill(row));
    for (const slot of this.slots) if (!used.has(slot)) slot.node.hidden = true;
    this.ask(first, last);
    this.root.dataset.drawMs = (performance.now() - started).toFixed(2);
    this.root.dataset.first = String(first);
  }

  /** @param {number} row */
  lineOf(row) {
    return this.pages.get(Math.floor(row / PAGE))?.[row % PAGE];
  }

  /** @param {number} row */
  fill(row) {
    const slot = this.slot(row);
    const { node } = slot;
    const line = this.lineOf(row);
    node.hidden = false;
    node.style.transform = `translateY(${row * this.row - this.top}px)`;
    const isMoment = this.place.is_there && row === this.place.row;
    const isCursor = row === this.cursor;
    const said = `${this.generation}|${row}|${Boolean(line)}|${isMoment}|${isCursor}`;
    if (said === slot.said) return slot;
    Object.assign(slot, { said, row });
    node.className = `mve-row${line ? ` mve-${line[LOOK]}` : ""}${isMoment ? " mve-moment" : ""}${isCursor ? " mve-cursor" : ""}`;
    node.setAttribute("aria-rowindex", String(row + 2));
    node.setAttribute("aria-selected", String(isMoment));
    if (isCursor) this.grid.setAttribute("aria-activedescendant", node.id);
    const event = this.isFiltered ? "" : grouped(row);
    this.shown.forEach((column, i) => write(slot.cells[i], column, line, event));
    return slot;
  }

  /** The pages in sight first; what has been scrolled past meanwhile is not asked for at all.
   * @param {number} first @param {number} last rows */
  ask(first, last) {
    for (let page = Math.floor(first / PAGE); page * PAGE < last; page++) {
      if (this.pages.has(page) || this.asked.has(page) || this.asked.size >= MOST_ASKED) continue;
      this.read(page);
    }
  }

  /** @param {number} page */
  async read(page) {
    const { generation, asked } = this;
    asked.add(page);
    /** @type {Line[]} */ let lines = [];
    try {
      lines = await this.server.event_page(this.request({ first: page * PAGE, last: (page + 1) * PAGE }));
    } catch (error) {
      this.refused(error);
    }
    asked.delete(page);
    if (generation !== this.generation) return;
    this.pages.set(page, lines);
    // A Map keeps the order of insertion, so the first one is the oldest.
    for (const oldest of this.pages.keys()) if (this.pages.size > MOST_PAGES) this.pages.delete(oldest);
    this.render();
  }

  // -- what people do

  /** @param {MouseEvent} event */
  clicked(event) {
    const node = nearest(event, ".mve-row");
    const slot = this.slots.find((shown) => shown.node === node);
    if (!slot) return;
    this.cursor = slot.row;
    this.grid.focus({ preventScroll: true });
    this.take();
  }

  /** The timeline goes to the event under the cursor. */
  take() {
    const line = this.lineOf(this.cursor);
    if (this.isFiltered && !line) return;
    this.at = this.isFiltered && line ? eventOf(line) : this.cursor;
    this.place = { row: this.cursor, is_there: true, count: this.count };
    this.heard = performance.now();
    this.render();
    say("memviz:go", { at: this.at });
  }

  /** @param {KeyboardEvent} event */
  keyed(event) {
    const { scale } = this;
    if (!scale) return;
    const page = Math.max(Math.floor(this.view / this.row) - 1, 1);
    const step = (/** @type {number} */ by) => () => this.step(by, scale);
    actOnKey(event, { ArrowDown: step(1), ArrowUp: step(-1), PageDown: step(page), PageUp: step(-page), Home: step(-Infinity), End: step(Infinity), Enter: () => this.take() });
  }

  /** @param {number} by @param {Scale} scale */
  step(by, scale) {
    this.cursor = clamp(this.cursor + by, 0, this.count - 1);
    const y = this.cursor * this.row;
    if (y < this.top) this.setTop(y, scale);
    else if (y + this.row > this.top + this.view) this.setTop(y + this.row - this.view, scale);
    this.render();
  }
}

export const mount = mounting(EventList);
