// @ts-check
// The map as pixels: blocks in the timeline's own colours and grain, bytes beyond the request paler, what waits for
// another stream striped, free pieces hatched; and which tile a pixel shows. Where segments lie is in layout.js.
import { channels, clamp, el, isDark, mixed, pixelOf, pixelRatio, token } from "../base.js";
import { shadeOf, SHADES } from "../memory_timeline/raster.js";
import { bytesText } from "../words.js";
import { FREE, LIVE, owners, placesOf, WAITING } from "./layout.js";

const EDGES = 3;
const HEAD = 22;
const TALL = 24;
const ROOM = 560;
const LEAST_TALL = 7;
const LABEL_ROOM = 72;
const LABEL_TALL = 15;
const MOST_LABELS = 300;
const HATCH_PERIOD = 5;
/** How far a colour goes towards the page's. */
const PALE = 0.62;
const FADED = 0.7;

/** @import { Layout, Moment } from "./layout.js" */
/** A row's columns from `x` to `end`, which show one tile.
 * @typedef {{ row: number, tile: number, x: number, end: number }} Stretch */

export class MapCanvas {
  /** @param {HTMLElement} root of which the colours are asked */
  constructor(root) {
    this.root = root;
    this.node = el("canvas", { class: "mvs-canvas", "aria-hidden": "true" });
    this.heads = el("div", { class: "mvs-heads" });
    this.width = 0;
    this.height = 0;
    this.columns = 1;
    /** How high a row is drawn, and where each begins. */
    this.tall = 0;
    this.tops = new Int32Array(0);
    /** The tile of each pixel of each row. */
    this.owner = new Int32Array(0);
    /** @type {{ row: number, x: number, tile: number, colour: number }[]} */ this.labels = [];
    /** What was drawn last. @type {Moment} */ this.moment = /** @type {any} */ (null);
    /** @type {Layout} */ this.layout = /** @type {any} */ (null);
    /** Pixels of the screen in one of the page. */
    this.scale = 1;
    /** @type {{ page: number, hatch: number, line: number, palette: Uint32Array }} */
    this.colours = { page: 0, hatch: 0, line: 0, palette: new Uint32Array(0) };
    /** What was mixed already. @type {Map<number, number>} */ this.faded = new Map();
  }

  /** @param {Moment} moment @param {Layout} layout @param {number} width */
  draw(moment, layout, width) {
    Object.assign(this, { moment, layout, width, scale: pixelRatio(), faded: new Map() });
    const [page, hatch, line] = ["--mv-bg", "--mv-hatch", "--mv-line"].map((name) => pixelOf(token(this.root, name)));
    this.colours = { page, hatch, line, palette: moment.palettes[isDark() ? "dark" : "light"] };
    this.place();
    this.paint();
  }

  /** How high rows are and where each begins, headings included. */
  place() {
    const { header } = this.moment;
    const { rows, heads } = this.layout;
    const isNamed = header.groups.length > 1 || header.groups.some(([name]) => name !== "default pool");
    const pitch = rows * TALL <= ROOM ? TALL : Math.max(Math.floor(ROOM / rows), LEAST_TALL);
    this.tall = pitch - (pitch > 15 ? 5 : pitch > 9 ? 3 : 2);
    this.tops = new Int32Array(rows + 1);
    const headed = new Map(heads.map(({ row, group }) => [row, group]));
    const nodes = [];
    let y = 0;
    for (let row = 0; row < rows; row++) {
      const group = headed.get(row);
      if (isNamed && group !== undefined) {
        const [name, words] = header.groups[group];
        if (row) y += 6;
        nodes.push(el("div", { class: "mvs-head", style: `top:${y}px` }, el("b", {}, name), ` ${words}`));
        y += HEAD;
      }
      this.tops[row] = y;
      y += pitch;
    }
    this.tops[rows] = y;
    this.heads.replaceChildren(...nodes);
    this.height = Math.max(y, 1);
  }

  paint() {
    const { layout, scale } = this;
    this.columns = Math.max(Math.round(this.width * scale), 1);
    this.owner = owners(layout, this.moment.tiles, this.columns);
    const image = new ImageData(this.columns, Math.max(Math.round(this.height * scale), 1));
    const target = new Uint32Array(image.data.buffer);
    this.labels = [];
    for (let row = 0; row < layout.rows; row++) this.paintRow(target, row);
    Object.assign(this.node, { width: image.width, height: image.height });
    this.node.style.height = `${this.height}px`;
    const pen = /** @type {CanvasRenderingContext2D} */ (this.node.getContext("2d"));
    pen.putImageData(image, 0, 0);
    this.writeLabels(pen);
  }

  /** One line of pixels says what each column is; it is then repeated downwards, with its pattern.
   * @param {Uint32Array} target @param {number} row */
  paintRow(target, row) {
    const { columns, scale } = this;
    const line = new Uint32Array(columns);
    const pattern = new Uint8Array(columns);
    for (let x = 0, end = 1; x < columns; x = end) {
      const tile = this.owner[row * columns + x];
      for (end = x + 1; end < columns && this.owner[row * columns + end] === tile; ) end++;
      if (tile >= 0) this.fill(line, pattern, { row, tile, x, end });
    }
    const tall = Math.round(this.tall * scale);
    const top = Math.round(this.tops[row] * scale);
    for (let y = 0; y < tall; y++) {
      const at = (top + y) * columns;
      if (at + columns > target.length) return;
      target.set(line, at);
      this.drawPattern(target, pattern, { at, y, tall });
    }
  }

  /** @param {Uint32Array} line @param {Uint8Array} pattern @param {Stretch} stretch */
  fill(line, pattern, { row, tile, x, end }) {
    const { tiles } = this.moment;
    const { page, line: rim, palette } = this.colours;
    const wide = (end - x) / this.scale;
    const upto = end - this.gapAfter({ row, tile, x, end });
    if (tiles.kind[tile] === FREE) {
      line.fill(page, x, upto);
      pattern.fill(FREE + 1, x, upto);
      if (wide > 2) line[x] = line[upto - 1] = rim;
      if (wide > 2) pattern[x] = pattern[upto - 1] = 0;
      return;
    }
    // The same grain as the timeline's, so that a block looks the same in both.
    const shade = (tiles.group[tile] * SHADES + shadeOf(tiles.row[tile] - 1)) * EDGES;
    const colour = palette[shade];
    line.fill(colour, x, upto);
    this.fillRounding(line, { row, tile, x, end: upto }, mixed(colour, page, PALE));
    if (tiles.kind[tile] === WAITING) pattern.fill(WAITING + 1, x, upto);
    if (wide > 2) line[upto - 1] = wide > 4 ? page : palette[shade + 2];
    if (wide > 2) pattern[upto - 1] = 0;
    const isLabelled = tiles.kind[tile] === LIVE && this.tall >= LABEL_TALL && (upto - x) / this.scale >= LABEL_ROOM && this.labels.length < MOST_LABELS;
    if (isLabelled) this.labels.push({ row, x: x / this.scale, tile, colour });
  }

  /** Pixels left empty where a segment ends, so that two segments are not taken for one.
   * @param {Stretch} stretch */
  gapAfter({ row, tile, end }) {
    const { tiles, segments } = this.moment;
    const segment = tiles.segment[tile];
    const next = end < this.columns ? this.owner[row * this.columns + end] : -1;
    if ((next >= 0 && tiles.segment[next] === segment) || tile !== tiles.first[segment + 1] - 1) return 0;
    const wide = (segments.size[segment] / this.layout.rowBytes) * this.width;
    return wide >= 8 ? Math.round(3 * this.scale) : wide >= 3 ? Math.round(this.scale) : 0;
  }

  /** What the block has beyond the bytes asked for, paler, where that is a pixel or more.
   * @param {Uint32Array} line @param {Stretch} stretch @param {number} pale */
  fillRounding(line, { row, tile, end }, pale) {
    const { layout } = this;
    const { tiles } = this.moment;
    const spare = tiles.size[tile] - tiles.requested[tile];
    if ((spare / layout.rowBytes) * this.columns < 1) return;
    let before = 0;
    for (const place of placesOf(layout, tiles, tile)) {
      const asked = place.from + Math.max(tiles.requested[tile] - before, 0);
      before += place.to - place.from;
      if (place.row !== row || asked >= place.to) continue;
      const from = Math.round((asked / layout.rowBytes) * this.columns);
      if (from < end) line.fill(pale, from, end);
    }
  }

  /** @param {CanvasRenderingContext2D} pen */
  writeLabels(pen) {
    pen.setTransform(this.scale, 0, 0, this.scale, 0, 0);
    pen.font = `11px ${getComputedStyle(this.root).fontFamily}`;
    pen.textBaseline = "middle";
    let before = -1;
    for (const { row, x, tile, colour } of this.labels) {
      if (tile === before) continue;
      before = tile;
      pen.fillStyle = textOn(colour);
      pen.fillText(bytesText(this.moment.tiles.size[tile]), x + 6, this.tops[row] + this.tall / 2 + 0.5);
    }
  }

  // -- what a pixel shows

  /** The row and tile at a point; -1 for none. @param {import("../base.js").Point} at */
  under({ x, y }) {
    const nothing = { x, y, row: -1, tile: -1 };
    if (!this.layout || x < 0 || x >= this.width) return nothing;
    let row = this.layout.rows - 1;
    while (row >= 0 && this.tops[row] > y) row--;
    if (row < 0 || y >= this.tops[row] + this.tall) return nothing;
    return { x, y, row, tile: this.tileAt(row, Math.floor((x / this.width) * this.columns)) };
  }

  /** @param {number} row @param {number} column */
  tileAt(row, column) {
    return this.owner[row * this.columns + clamp(column, 0, this.columns - 1)];
  }

  /** @param {number} tile @param {string} name */
  outlines(tile, name) {
    if (tile < 0 || !this.layout) return [];
    const scale = this.width / this.layout.rowBytes;
    return placesOf(this.layout, this.moment.tiles, tile).map(({ row, from, to }) =>
      el("i", { class: name, style: `left:${from * scale}px;top:${this.tops[row]}px;width:${Math.max((to - from) * scale, 3)}px;height:${this.tall}px` }));
  }

  /** @param {Uint32Array} target @param {Uint8Array} pattern @param {{ at: number, y: number, tall: number }} line */
  drawPattern(target, pattern, { at, y, tall }) {
    const { page, hatch, line } = this.colours;
    const thick = Math.max(Math.round(this.scale), 1);
    const period = Math.round(HATCH_PERIOD * this.scale);
    const isRim = y < thick || y >= tall - thick;
    for (let x = 0; x < pattern.length; x++) {
      const kind = pattern[x];
      if (kind === FREE + 1) {
        if (isRim) target[at + x] = line;
        else if ((x + y) % period < thick) target[at + x] = hatch;
      } else if (kind === WAITING + 1 && (x + 10 * tall - y) % (2 * period) < period) {
        const px = target[at + x];
        if (!this.faded.has(px)) this.faded.set(px, mixed(px, page, FADED));
        target[at + x] = /** @type {number} */ (this.faded.get(px));
      }
    }
  }
}

/** Ink or white, whichever can be read on this fill. @param {number} px */
export function textOn(px) {
  const [red, green, blue] = channels(px).map((value) => (value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.19 ? "#131316" : "#ffffff";
}
