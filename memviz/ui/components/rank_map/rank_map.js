// @ts-check
// A row a rank, a column a moment of a step. The picture has one pixel a cell and is scaled by the browser; bars, names
// and the marked row are drawn over it. A click or Enter chooses a rank, which Python is told.
import { all, channels, clamp, Component, countPicture, el, inTurn, isDark, mixed, mounting, newTip, onModeChange, onSaid, pixel, pointIn, shape, showTip, tipLines, token } from "../base.js";
import { bytesText } from "../words.js";

const LIGHT = [0xf4f6fa, 0xc3d6ea, 0x76a9d8, 0x2f6fb3, 0x0c2c59];
const DARK = [0x191d24, 0x1f3a58, 0x2c6499, 0x64a5dc, 0xdcedff];
const MOST_HIGH = 480;
const HIGHEST_ROW = 22;

/** 256 colours as little-endian pixels: 0 is where nothing is known, the rest goes from none to the highest peak.
 * @param {boolean} dark @param {number} nothing 0xRRGGBB @returns {Uint32Array} */
export function shadesOf(dark, nothing) {
  const stops = dark ? DARK : LIGHT;
  const table = new Uint32Array(256);
  for (let i = 1; i < 256; i++) {
    const at = ((i - 1) / 254) * (stops.length - 1);
    const before = Math.min(Math.floor(at), stops.length - 2);
    table[i] = mixed(pixel(stops[before]), pixel(stops[before + 1]), at - before);
  }
  table[0] = pixel(nothing);
  return table;
}

/** Pixels of a row: whole ones, so that each rank can be pointed at, however many there are.
 * @param {number} rows */
export const rowHeight = (rows) => Math.max(1, Math.min(HIGHEST_ROW, Math.floor(MOST_HIGH / Math.max(rows, 1))));

/** Bytes of a cell, as near as its shade tells; null where nothing is known.
 * @param {number} shade @param {number} highest */
export const bytesOfShade = (shade, highest) => (shade ? ((shade - 1) / 254) * highest : null);

const LABELS_APART = 16;
const THIN = 6;
const LEAST_STEP_WIDTH = 44;

/** What Python gives; README.md says what each is.
 * @typedef {{ ranks: number[], names: string[], peaks: number[], groups: number[], outliers: number[], steps: string[], columns: number, highest: number, chosen: number | null, shades: string, label: string }} Value */

class RankMap extends Component {
  /** @type {Value | null} */ value = null;
  shades = new Uint8Array(0);
  /** The row that keys stand on. */
  row = 0;

  choose = inTurn(this.tell.select);
  picture = el("canvas", { class: "mvn-picture" });
  mark = el("i", { class: "mvn-mark", hidden: "" });
  tip = newTip();
  steps = el("div", { class: "mvn-steps", "aria-hidden": "true" });
  names = el("div", { class: "mvn-names", "aria-hidden": "true" });
  bars = el("canvas", { class: "mvn-bars" });
  plot = el("div", { class: "mvn-plot", tabindex: "0", role: "slider", "aria-orientation": "vertical" }, this.picture, this.mark, this.tip);
  beside = el("div", { class: "mvn-beside" }, this.bars);
  most = el("span");
  ramp = el("canvas", { class: "mvn-ramp", width: 255, height: 1 });

  build() {
    const head = el("span", { class: "mvn-head", "aria-hidden": "true" }, "peak");
    const scale = el("div", { class: "mvn-scale", "aria-hidden": "true" }, el("span", {}, "0"), this.ramp, this.most);
    this.root = el("div", { class: "mvn", hidden: "" }, this.steps, head, this.names, this.plot, this.beside, scale);
    for (const area of [this.plot, this.beside]) {
      area.addEventListener("pointermove", (event) => this.point(event, area));
      area.addEventListener("pointerleave", () => (this.tip.hidden = true));
      area.addEventListener("click", (event) => this.pick(this.rowAt(event, area)));
    }
    this.plot.addEventListener("keydown", (event) => this.press(event));
    for (const change of ["focus", "blur"]) this.plot.addEventListener(change, () => this.showMark());
    onModeChange(() => this.draw());
    onSaid("memviz:picture", (parts) => this.value && this.host.offsetParent && parts.push(this.part(this.value)));
    new ResizeObserver(() => this.draw()).observe(this.plot);
  }

  /** @param {Value | null} value */
  load(value) {
    this.value = value && value.ranks?.length ? value : null;
    this.root.hidden = !this.value;
    if (!this.value) return;
    this.shades = Uint8Array.from(atob(this.value.shades), (letter) => letter.charCodeAt(0));
    const chosen = this.value.ranks.indexOf(this.value.chosen ?? NaN);
    this.row = Math.max(chosen, 0);
    this.plot.setAttribute("aria-label", this.value.label);
    this.plot.setAttribute("aria-valuemin", "1");
    this.plot.setAttribute("aria-valuemax", String(this.value.ranks.length));
    this.most.textContent = `${bytesText(this.value.highest)} live`;
    this.draw();
  }

  /** @param {Value} value @returns {import("../picture.js").Part} */
  part(value) {
    const { width } = this.plot.getBoundingClientRect();
    const [ink, soft] = ["--mv-ink-2", "--mv-ink-3"].map((name) => token(this.root, name));
    const write = (/** @type {HTMLElement} */ node, /** @type {Record<string, any>} */ place) => shape("text", { ...place, style: `fill:${ink};font-size:11px` }, node.innerText);
    const steps = all("span", this.steps).map((node) => write(node, { x: node.offsetLeft, y: -6 }));
    const names = all("span", this.names).map((node) => write(node, { x: -8, y: parseFloat(node.style.top) + 4, style: `fill:${ink};font-size:11px;text-anchor:end` }));
    const bars = value.peaks.map((peak, row) => shape("rect", { x: width + 8, y: row * this.height, width: (peak / value.highest) * 90, height: Math.max(this.height - 1, 1), style: `fill:${soft}` }));
    const shades = shadesOf(isDark(), 0);
    const keys = [0, 0.5, 1].map((share) => /** @type {[string, string]} */ ([`rgb(${channels(shades[1 + Math.round(share * 254)]).join(" ")})`, `${bytesText(share * value.highest)} live`]));
    return { nodes: [...steps, ...names, ...bars], canvas: { node: this.picture, left: 0, width }, width, height: value.ranks.length * this.height, room: { left: 90, right: 110, upper: 24, lower: 12 }, keys };
  }

  get height() {
    return this.value ? rowHeight(this.value.ranks.length) : 0;
  }

  draw() {
    const { value } = this;
    if (!value || !this.root.isConnected) return;
    const colours = shadesOf(isDark(), parseInt(token(this.root, "--mv-fill-2").slice(1), 16));
    this.paint(this.picture, value.steps.length * value.columns, this.shades, colours);
    this.paint(this.ramp, 255, Uint8Array.from({ length: 255 }, (_, i) => i + 1), colours);
    this.root.style.setProperty("--mvn-high", `${value.ranks.length * this.height}px`);
    this.drawBars(value);
    this.label(value);
    this.showMark();
    countPicture(this.root);
  }

  /** @param {HTMLCanvasElement} canvas @param {number} width @param {Uint8Array} cells @param {Uint32Array} colours */
  paint(canvas, width, cells, colours) {
    const height = cells.length / width;
    Object.assign(canvas, { width, height });
    const pixels = Uint32Array.from(cells, (shade) => colours[shade]);
    canvas.getContext("2d")?.putImageData(new ImageData(new Uint8ClampedArray(pixels.buffer), width, height), 0, 0);
  }

  /** Each rank's peak; those that stand out in another colour. @param {Value} value */
  drawBars(value) {
    const [wide, high] = [Math.max(this.beside.clientWidth, 1), value.ranks.length * this.height];
    Object.assign(this.bars, { width: wide, height: high });
    const pen = this.bars.getContext("2d");
    if (!pen) return;
    const out = new Set(value.outliers);
    const thick = this.height > 3 ? this.height - 2 : this.height;
    value.peaks.forEach((peak, row) => {
      pen.fillStyle = token(this.root, out.has(value.ranks[row]) ? "--mv-grew" : "--mv-ink-3");
      pen.fillRect(0, row * this.height + (this.height - thick) / 2, Math.max((peak / value.highest) * wide, 1), thick);
    });
  }

  /** Steps above, names of ranks at the left where there is room. @param {Value} value */
  label(value) {
    const share = 100 / value.steps.length;
    const every = Math.ceil(LEAST_STEP_WIDTH / Math.max(this.plot.clientWidth / value.steps.length, 1));
    this.steps.replaceChildren(...value.steps.map((words, i) => el("span", { style: `left:${i * share}%`, title: words }, i % every ? "" : i > 1 ? words.replace(/^step /, "") : words)));
    const apart = Math.max(1, Math.ceil(LABELS_APART / this.height));
    const middle = this.height / 2;
    const shown = value.ranks.map((_, row) => row).filter((row) => row % apart === 0);
    // Where there is no room for the place on the mesh, the number stays.
    this.names.replaceChildren(...shown.map((row) => {
      const [number, ...mesh] = value.names[row].split(" ");
      return el("span", { style: `top:${row * this.height + middle}px` }, number, el("small", {}, mesh.length ? ` ${mesh.join(" ")}` : ""));
    }));
  }

  showMark() {
    const { value } = this;
    const row = value ? value.ranks.indexOf(value.chosen ?? NaN) : -1;
    const isKeyed = document.activeElement === this.plot;
    const [name, peak] = [value?.names[this.row], value?.peaks[this.row]];
    this.plot.setAttribute("aria-valuenow", String(this.row + 1));
    this.plot.setAttribute("aria-valuetext", `rank ${name}, peak ${bytesText(peak || 0)}${this.row === row ? ", chosen" : ""}`);
    this.mark.hidden = row < 0 && !isKeyed;
    const marked = isKeyed ? this.row : row;
    // A frame around a thin row would hide it, so that one has a mark at each end.
    const isThin = this.height < THIN;
    this.mark.classList.toggle("mvn-thin", isThin);
    this.mark.style.top = `${marked * this.height + (isThin ? this.height / 2 - 4 : -1)}px`;
    this.mark.style.height = isThin ? "" : `${this.height + 2}px`;
  }

  /** @param {MouseEvent} event @param {HTMLElement} area */
  rowAt(event, area) {
    const rows = this.value?.ranks.length || 1;
    return clamp(Math.floor(pointIn(area, event).y / this.height), 0, rows - 1);
  }

  /** @param {PointerEvent} event @param {HTMLElement} area */
  point(event, area) {
    const { value } = this;
    if (!value || event.pointerType === "touch") return;
    const box = this.plot.getBoundingClientRect();
    const at = pointIn(this.plot, event);
    const row = this.rowAt(event, area);
    const lines = [[`rank ${value.ranks[row]}`, value.names[row].replace(/^\d+ ?/, "")], [`peak ${bytesText(value.peaks[row])}`]];
    if (area === this.plot) {
      const wide = value.steps.length * value.columns;
      const column = clamp(Math.floor((at.x / box.width) * wide), 0, wide - 1);
      const bytes = bytesOfShade(this.shades[row * wide + column], value.highest);
      lines.push([`${value.steps[Math.floor(column / value.columns)]}: ${bytes === null ? "not recorded" : `about ${bytesText(bytes)}`}`]);
    }
    showTip(this.tip, at, { width: box.width + this.beside.clientWidth, height: box.height }, tipLines(lines));
  }

  /** @param {number} row */
  pick(row) {
    const { value } = this;
    if (!value) return;
    this.row = row;
    value.chosen = value.ranks[row];
    this.showMark();
    this.choose({ rank: value.chosen });
  }

  /** @param {KeyboardEvent} event */
  press(event) {
    const { value } = this;
    const by = { ArrowUp: -1, ArrowDown: 1, PageUp: -16, PageDown: 16, Home: -Infinity, End: Infinity }[event.key];
    if (!value || (by === undefined && event.key !== "Enter")) return;
    event.preventDefault();
    if (by === undefined) return this.pick(this.row);
    this.row = clamp(this.row + by, 0, value.ranks.length - 1);
    this.showMark();
  }
}

export const mount = mounting(RankMap);
