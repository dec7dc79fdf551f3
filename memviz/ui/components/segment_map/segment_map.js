// @ts-check
// The allocator's map at one moment: what is asked for, the slider, the tooltip, the keys, figures and table.
// README.md beside this file says what its parts are, what comes in and what goes out.
import { actOnKey, button, clamp, countPicture, el, Follower, mounting, newTip, onModeChange, pointIn, refusalWords, say, showTip, switchOf, tipLines } from "../base.js";
import { bytesText, eventText, grouped } from "../words.js";
import { MapCanvas } from "./canvas.js";
import { chooseRowLength, drawingOrder, FREE, Moment, MOST_ROWS, placesOf, shelveWithin, sum, tilesIn } from "./layout.js";

const NARROW = 560;
const LEAST_ROW = 1024;
const LEAST_TIP_ROOM = 120;
const NOTHING = -1;
const KEYS_HELP = "Left and right move between blocks, up and down change the row, Enter pins, Escape undoes. The table below has the same data.";

/** @import { Layout } from "./layout.js" */
/** @import { Point } from "../base.js" */
/** What memviz.ui.payloads.segment_view.map_value makes.
 * @typedef {{ key: string, events: number, at: number, pin: number, colour: string }} Value */
/** @typedef {{ at?: number, pin?: number, colour?: string }} State */

export class SegmentMap extends Follower {
  at = -1;
  colour = "category";
  /** A row of the lifetimes. */
  pin = NOTHING;
  /** The tile that is pointed at. */
  cursor = NOTHING;
  by = "size";
  /** @type {Moment | null} */ drawn = null;
  /** @type {Layout | null} */ layout = null;
  /** Of the plot, when it was drawn. */
  width = 0;
  /** How long a row is; 0 until that is chosen. */
  rowBytes = 0;
  /** The page below must not jump up and down while the moment moves. */
  highest = 0;

  // What is under way.
  isAsking = false;
  /** The last question that was answered. */
  answered = "";
  scrubbing = 0;

  // What it is made of.
  canvas = new MapCanvas(this.root);
  title = el("span", { class: "mvs-title" });
  note = el("span", { class: "mvs-note" });
  orders = switchOf("Order of the segments", { size: "By size", address: "By address" }, (by) => {
    Object.assign(this, { by, cursor: NOTHING });
    this.orders.show(by);
    this.draw();
  });
  rowText = el("span", { class: "mvs-row-text" });
  shorter = button("+", "Shorter rows: more detail", () => this.stretchRows(1 / 2));
  longer = button("−", "Longer rows: less detail", () => this.stretchRows(2));
  slider = el("input", { type: "range", class: "mvs-slider", "aria-label": "Moment", min: "-1", max: "0", step: "1" });
  marks = el("div", { class: "mvs-marks", "aria-hidden": "true" });
  tip = newTip();
  plot = el("div", { class: "mvs-plot", tabindex: "0", role: "application", "aria-describedby": `mvs-keys-${this.id}` }, this.canvas.node, this.marks, this.canvas.heads, this.tip);
  live = el("div", { class: "mvt-hidden", "aria-live": "polite" });
  figures = el("div", { class: "mvs-figures" });
  table = el("div", { class: "mvs-table" });
  details = el("details", { class: "mvs-details" }, el("summary", {}, "As a table"), this.table);

  build() {
    super.build();
    const controls = el("div", { class: "mvs-controls" }, el("span", { class: "mvs-rows" }, this.rowText, this.longer, this.shorter), this.orders.node);
    const bar = el("div", { class: "mvs-bar" }, el("div", { class: "mvs-words" }, this.title, this.note), controls);
    const help = el("div", { class: "mvt-hidden", id: `mvs-keys-${this.id}` }, KEYS_HELP);
    this.root.className = "mvs";
    this.root.hidden = true;
    this.root.append(bar, this.slider, this.plot, help, this.live, this.figures, this.details);
    new ResizeObserver(() => this.resized()).observe(this.root);
    onModeChange(() => this.draw());
    this.slider.addEventListener("input", () => {
      this.hear({ at: Number(this.slider.value) });
      cancelAnimationFrame(this.scrubbing);
      this.scrubbing = requestAnimationFrame(() => say("memviz:go", { at: this.at }));
    });
    this.details.addEventListener("toggle", () => this.details.open && this.ask());
    this.plot.addEventListener("pointermove", (event) => event.pointerType !== "touch" && this.hover(event));
    this.plot.addEventListener("pointerleave", () => this.point(NOTHING));
    this.plot.addEventListener("click", (event) => this.pinTile(this.hover(event)));
    this.plot.addEventListener("keydown", (event) => this.keyed(event));
  }

  // -- what to show

  /** @param {Value} value */
  start(value) {
    Object.assign(this, { key: value.key, heard: -Infinity, drawn: null, rowBytes: 0, highest: 0, cursor: NOTHING });
    this.marks.replaceChildren();
    this.slider.max = String(value.events - 1);
    this.slider.hidden = !value.events;
    this.follow(value);
  }

  /** @param {State} state */
  follow({ at = this.at, pin = this.pin, colour }) {
    if (Number.isFinite(pin) && pin !== this.pin) {
      this.pin = pin;
      this.mark();
    }
    this.colour = colour || this.colour;
    if (Number.isFinite(at)) this.at = at;
    this.slider.value = String(this.at);
    this.slider.setAttribute("aria-valuetext", eventText(this.at));
    this.ask();
  }

  wanted() {
    return { key: this.key, at: this.at, colour: this.colour, table: this.details.open };
  }

  /** One question at a time; the last drawn picture stays until the newest answer is there. */
  async ask() {
    if (this.isAsking || !this.key || !this.root.clientWidth) return;
    const request = this.wanted();
    const words = JSON.stringify(request);
    if (words === this.answered) return;
    this.isAsking = true;
    try {
      const started = performance.now();
      const answer = await this.server.segment_map(request);
      const moment = await Moment.of(answer);
      if (request.key === this.key) this.take(answer, moment, started);
    } catch (error) {
      this.title.textContent = refusalWords("The map could not be drawn", error);
    } finally {
      this.answered = words;
      this.isAsking = false;
    }
    if (JSON.stringify(this.wanted()) !== words) this.ask();
  }

  /** @param {{ title: string, figures: string, table: string }} answer @param {Moment} moment @param {number} started */
  take(answer, moment, started) {
    this.drawn = moment;
    this.cursor = NOTHING;
    this.title.textContent = answer.title;
    // Both are made by memviz.ui.payloads.segment_view, which escapes every text.
    this.figures.innerHTML = answer.figures;
    if (answer.table) this.table.innerHTML = answer.table;
    this.plot.setAttribute("aria-label", `The allocator's segments. ${answer.title}`);
    this.draw();
    this.root.dataset.answerMs = (performance.now() - started).toFixed(1);
    this.root.dataset.at = String(moment.header.at);
  }

  // -- drawing

  resized() {
    if (!this.root.clientWidth) return;
    this.root.classList.toggle("mvs-narrow", this.root.clientWidth < NARROW);
    if (this.drawn && this.width !== this.plot.clientWidth) {
      this.highest = 0;
      this.draw();
    }
    this.ask();
  }

  draw() {
    this.width = Math.floor(this.plot.clientWidth);
    if (!this.drawn || !this.width) return;
    const started = performance.now();
    const { size, group } = this.drawn.segments;
    const order = drawingOrder(size, group, this.by);
    this.layout = shelveWithin(size, group, order, this.rowBytes || chooseRowLength(size, group, order, this.width));
    this.rowBytes = this.layout.rowBytes;
    this.canvas.draw(this.drawn, this.layout, this.width);
    this.highest = Math.max(this.highest, this.canvas.tops[this.layout.rows]);
    this.plot.style.height = `${this.highest}px`;
    // Nobody stops with the keyboard at what has no height.
    this.plot.tabIndex = this.highest ? 0 : -1;
    this.mark();
    this.rowText.textContent = `${bytesText(this.rowBytes)} a row`;
    this.longer.disabled = this.rowBytes >= Math.max(sum(size), 1);
    this.shorter.disabled = this.layout.rows * 2 > MOST_ROWS || this.rowBytes <= LEAST_ROW;
    this.root.dataset.drawMs = (performance.now() - started).toFixed(1);
    countPicture(this.root);
  }

  /** Outlines of the pinned block and of the one under the pointer. */
  mark() {
    if (!this.drawn || !this.layout) return;
    const pinned = this.drawn.tileOf(this.pin);
    const pointed = this.cursor === pinned ? [] : this.canvas.outlines(this.cursor, "mvs-pointed");
    this.marks.replaceChildren(...this.canvas.outlines(pinned, "mvs-pinned"), ...pointed);
    // Where the file does not say where blocks lie none is drawn, live or not.
    const isAway = this.pin >= 0 && pinned < 0 && this.drawn.header.is_placed;
    this.note.textContent = isAway ? " · the pinned allocation is not live here" : "";
    this.root.dataset.pinned = String(pinned >= 0 ? this.pin : NOTHING);
  }

  /** @param {number} factor */
  stretchRows(factor) {
    if (this.layout) this.setRowLength(Math.max(this.rowBytes * factor, LEAST_ROW));
  }

  /** @param {number} bytes */
  setRowLength(bytes) {
    this.rowBytes = bytes;
    this.highest = 0;
    this.draw();
  }

  // -- what people do

  /** @param {MouseEvent} event @returns {number} the tile that is pointed at */
  hover(event) {
    const at = this.canvas.under(pointIn(this.plot, event));
    this.point(at.tile, at);
    return at.tile;
  }

  /** @param {number} tile */
  pinTile(tile) {
    const row = this.drawn && tile >= 0 ? this.drawn.rowOf(tile) : NOTHING;
    if (row >= 0) say("memviz:go", { pin: row });
  }

  /** @param {number} tile @param {Point & { row: number }} [at] */
  point(tile, at) {
    if (tile !== this.cursor) {
      this.cursor = tile;
      this.mark();
    }
    this.tip.hidden = tile < 0;
    if (tile >= 0 && at) this.showTip(at, this.wordsAt(tile, at));
  }

  /** @param {Point} at @param {string[][]} lines */
  showTip(at, lines) {
    showTip(this.tip, at, { width: this.width, height: Math.max(this.canvas.height, LEAST_TIP_ROOM) }, tipLines(lines));
  }

  /** Of all that share a pixel, or else of the tile.
   * @param {number} tile @param {Point & { row: number }} at */
  wordsAt(tile, at) {
    const { moment, layout } = this.canvas;
    const { tiles } = moment;
    const perPixel = layout.rowBytes / this.width;
    if (tiles.size[tile] >= perPixel) return moment.words(tile);
    const from = Math.floor(at.x) * perPixel;
    const together = tilesIn(layout, tiles, at.row, from, from + perPixel).filter((shared) => tiles.kind[shared] !== FREE);
    if (together.length <= 1) return moment.words(tile);
    const bytes = sum(together.map((shared) => tiles.size[shared]));
    return [[`${grouped(together.length)} blocks, ${bytesText(bytes)} together`], ["shorten the rows to separate them"]];
  }

  /** @param {KeyboardEvent} event */
  keyed(event) {
    if (!this.drawn || !this.layout) return;
    actOnKey(event, {
      ArrowRight: () => this.walk(1),
      ArrowLeft: () => this.walk(-1),
      ArrowDown: () => this.walkRow(1),
      ArrowUp: () => this.walkRow(-1),
      Home: () => this.goTo(this.inOrder()[0]),
      End: () => this.goTo(this.inOrder().at(-1)),
      Enter: () => this.pinTile(this.cursor),
      Escape: () => this.undo(),
    });
  }

  /** The tiles as they are drawn. */
  inOrder() {
    const { moment, layout } = this.canvas;
    const { first } = moment.tiles;
    return [...layout.pieces.keys()].flatMap((segment) => Array.from({ length: first[segment + 1] - first[segment] }, (_, i) => first[segment] + i));
  }

  /** @param {1 | -1} step */
  walk(step) {
    const order = this.inOrder();
    const at = this.cursor < 0 ? (step > 0 ? -1 : order.length) : order.indexOf(this.cursor);
    this.goTo(order[clamp(at + step, 0, order.length - 1)]);
  }

  /** To what stands above or below the middle of a tile.
   * @param {1 | -1} step */
  walkRow(step) {
    if (this.cursor < 0) return this.walk(1);
    const { moment, layout } = this.canvas;
    const [place] = placesOf(layout, moment.tiles, this.cursor);
    const middle = Math.floor(((place.from + place.to) / 2 / layout.rowBytes) * this.canvas.columns);
    for (let row = place.row + step; row >= 0 && row < layout.rows; row += step) {
      const tile = this.canvas.tileAt(row, middle);
      if (tile >= 0 && tile !== this.cursor) return this.goTo(tile);
    }
  }

  /** @param {number | undefined} tile */
  goTo(tile) {
    if (tile === undefined) return;
    const { moment, layout } = this.canvas;
    this.cursor = tile;
    this.mark();
    const [{ row, from }] = placesOf(layout, moment.tiles, tile);
    const words = moment.words(tile);
    this.showTip({ x: (from / layout.rowBytes) * this.width, y: this.canvas.tops[row] + this.canvas.tall }, words);
    this.live.textContent = words.flat().filter(Boolean).join(", ");
  }

  /** One thing at a time. */
  undo() {
    if (this.cursor >= 0) this.point(NOTHING);
    else if (this.pin >= 0) say("memviz:go", { pin: this.pin });
  }
}

export const mount = mounting(SegmentMap);
