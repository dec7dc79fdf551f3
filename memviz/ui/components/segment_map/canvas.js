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
/** What a picture is drawn with; `faded` remembers what was mixed.
 * @typedef {{ scale: number, page: number, hatch: number, line: number, faded: Map<number, number>, palette: Uint32Array }} Look */
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
    /** @type {{ moment: Moment, layout: Layout } | null} */ this.drawn = null;
  }

  /** @param {Moment} moment @param {Layout} layout @param {number} width */
  draw(moment, layout, width) {
    this.drawn = { moment, layout };
    this.width = width;
    this.place(moment, layout);
    this.paint(moment, layout);
  }

  /** How high rows are and where each begins, headings included.
   * @param {Moment} moment @param {Layout} layout */
  place({ header }, { rows, heads }) {
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

  /** @param {Moment} moment @param {Layout} layout */
  paint(moment, layout) {
    const look = this.look(moment);
    const { scale } = look;
    this.columns = Math.max(Math.round(this.width * scale), 1);
    this.owner = owners(layout, moment.tiles, this.columns);
    const image = new ImageData(this.columns, Math.max(Math.round(this.height * scale), 1));
    const target = new Uint32Array(image.data.buffer);
    this.labels = [];
    for (let row = 0; row < layout.rows; row++) this.paintRow(target, row, moment, layout, look);
    Object.assign(this.node, { width: image.width, height: image.height });
    this.node.style.height = `${this.height}px`;
    const pen = /** @type {CanvasRenderingContext2D} */ (this.node.getContext("2d"));
    pen.putImageData(image, 0, 0);
    this.writeLabels(pen, moment, scale);
  }

  /** @param {Moment} moment @returns {Look} */
  look({ palettes }) {
    const colour = (/** @type {string} */ name) => pixelOf(token(this.root, name));
    const palette = palettes[isDark() ? "dark" : "light"];
    return { scale: pixelRatio(), page: colour("--mv-bg"), hatch: colour("--mv-hatch"), line: colour("--mv-line"), faded: new Map(), palette };
  }

  /** One line of pixels says what each column is; it is then repeated downwards, with its pattern.
   * @param {Uint32Array} target @param {number} row @param {Moment} moment @param {Layout} layout @param {Look} look */
  paintRow(target, row, moment, layout, look) {
    const { columns } = this;
    const line = new Uint32Array(columns);
    const pattern = new Uint8Array(columns);
    for (let x = 0, end = 1; x < columns; x = end) {
      const tile = this.owner[row * columns + x];
      for (end = x + 1; end < columns && this.owner[row * columns + end] === tile; ) end++;
      if (tile >= 0) this.fill(line, pattern, { row, tile, x, end }, moment, layout, look);
    }
    const tall = Math.round(this.tall * look.scale);
    const top = Math.round(this.tops[row] * look.scale);
    for (let y = 0; y < tall; y++) {
      const at = (top + y) * columns;
      if (at + columns > target.length) return;
      target.set(line, at);
      drawPattern(target, pattern, { at, y, tall }, look);
    }
  }

  /** @param {Uint32Array} line @param {Uint8Array} pattern @param {Stretch} stretch @param {Moment} moment @param {Layout} layout @param {Look} look */
  fill(line, pattern, { row, tile, x, end }, moment, layout, look) {
    const { tiles } = moment;
    const wide = (end - x) / look.scale;
    const upto = end - this.gapAfter({ row, tile, x, end }, moment, layout, look.scale);
    if (tiles.kind[tile] === FREE) {
      line.fill(look.page, x, upto);
      pattern.fill(FREE + 1, x, upto);
      if (wide > 2) line[x] = line[upto - 1] = look.line;
      if (wide > 2) pattern[x] = pattern[upto - 1] = 0;
      return;
    }
    const colours = coloursOf(tile, moment, look);
    line.fill(colours[0], x, upto);
    this.fillRounding(line, { row, tile, x, end: upto }, moment, layout, mixed(colours[0], look.page, PALE));
    if (tiles.kind[tile] === WAITING) pattern.fill(WAITING + 1, x, upto);
    if (wide > 2) line[upto - 1] = wide > 4 ? look.page : colours[2];
    if (wide > 2) pattern[upto - 1] = 0;
    const isLabelled = tiles.kind[tile] === LIVE && this.tall >= LABEL_TALL && (upto - x) / look.scale >= LABEL_ROOM && this.labels.length < MOST_LABELS;
    if (isLabelled) this.labels.push({ row, x: x / look.scale, tile, colour: colours[0] });
  }

  /** Pixels left empty where a segment ends, so that two segments are not taken for one.
   * @param {Stretch} stretch @param {Moment} moment @param {Layout} layout @param {number} scale */
  gapAfter({ row, tile, end }, { tiles, segments }, layout, scale) {
    const segment = tiles.segment[tile];
    const next = end < this.columns ? this.owner[row * this.columns + end] : -1;
    if ((next >= 0 && tiles.segment[next] === segment) || tile !== tiles.first[segment + 1] - 1) return 0;
    const wide = (segments.size[segment] / layout.rowBytes) * this.width;
    return wide >= 8 ? Math.round(3 * scale) : wide >= 3 ? Math.round(scale) : 0;
  }

  /** What the block has beyond the bytes asked for, paler, where that is a pixel or more.
   * @param {Uint32Array} line @param {Stretch} stretch @param {Moment} moment @param {Layout} layout @param {number} pale */
  fillRounding(line, { row, tile, end }, { tiles }, layout, pale) {
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

  /** @param {CanvasRenderingContext2D} pen @param {Moment} moment @param {number} scale */
  writeLabels(pen, { tiles }, scale) {
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.font = `11px ${getComputedStyle(this.root).fontFamily}`;
    pen.textBaseline = "middle";
    let before = -1;
    for (const { row, x, tile, colour } of this.labels) {
      if (tile === before) continue;
      before = tile;
      pen.fillStyle = textOn(colour);
      pen.fillText(bytesText(tiles.size[tile]), x + 6, this.tops[row] + this.tall / 2 + 0.5);
    }
  }

  // -- what a pixel shows

  /** The row and tile at a point; -1 for none. @param {import("../base.js").Point} at */
  under({ x, y }) {
    const nothing = { x, y, row: -1, tile: -1 };
    if (!this.drawn || x < 0 || x >= this.width) return nothing;
    let row = this.drawn.layout.rows - 1;
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
    if (tile < 0 || !this.drawn) return [];
    const { moment, layout } = this.drawn;
    const scale = this.width / layout.rowBytes;
    return placesOf(layout, moment.tiles, tile).map(({ row, from, to }) =>
      el("i", { class: name, style: `left:${from * scale}px;top:${this.tops[row]}px;width:${Math.max((to - from) * scale, 3)}px;height:${this.tall}px` }));
  }
}

/** The same grain as the timeline's, so that a block looks the same in both.
 * @param {number} tile @param {Moment} moment @param {Look} look */
function coloursOf(tile, { tiles }, { palette }) {
  const at = (tiles.group[tile] * SHADES + shadeOf(tiles.row[tile] - 1)) * EDGES;
  return palette.subarray(at, at + EDGES);
}

/** @param {Uint32Array} target @param {Uint8Array} pattern @param {{ at: number, y: number, tall: number }} line @param {Look} look */
function drawPattern(target, pattern, { at, y, tall }, look) {
  const { scale } = look;
  const thick = Math.max(Math.round(scale), 1);
  const period = Math.round(HATCH_PERIOD * scale);
  const isRim = y < thick || y >= tall - thick;
  for (let x = 0; x < pattern.length; x++) {
    const kind = pattern[x];
    if (kind === FREE + 1) {
      if (isRim) target[at + x] = look.line;
      else if ((x + y) % period < thick) target[at + x] = look.hatch;
    } else if (kind === WAITING + 1 && (x + 10 * tall - y) % (2 * period) < period) target[at + x] = faded(target[at + x], look);
  }
}

// -- colours of pixels

/** Of a few colours, for very many pixels. @param {number} px @param {Look} look */
function faded(px, look) {
  const known = look.faded.get(px) ?? mixed(px, look.page, FADED);
  look.faded.set(px, known);
  return known;
}

/** Ink or white, whichever can be read on this fill. @param {number} px */
export function textOn(px) {
  const [red, green, blue] = channels(px).map((value) => (value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.19 ? "#131316" : "#ffffff";
}
