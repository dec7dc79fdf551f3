// @ts-check
// The plots that are seen, beside or below each other as on the page, with the page's headline and what their colours mean, as a picture that
// needs nothing else. A plot that hears `memviz:picture` adds itself to the list that comes with it.
import { all, el, saveFile, say, shape, token } from "./base.js";

const LOOKS = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "stroke-linejoin", "font-size", "font-weight", "text-anchor", "paint-order"];
const EDGE = 20;
const LINE = 20;
const LETTER = 6.6;
const HEAD = { size: 15, line: 21, letter: 9.8 };
const FONT = "IBM Plex Sans, Helvetica, Arial, sans-serif";

/** What is drawn of a plot: SVG with its looks in style sheets, under it a canvas, and the room for axes around both.
 * @typedef {{ nodes: Element[], canvas?: { node: HTMLCanvasElement, left: number, width: number }, width: number, height: number, room: { left: number, right: number, upper: number, lower: number }, title?: string, keys: [colour: string, words: string][] }} Part */

/** @param {"png" | "svg"} kind */
export async function savePicture(kind) {
  /** @type {Part[]} */ const parts = [];
  say("memviz:picture", parts);
  if (!parts.length) return;
  const { text, width, height } = svgOf(parts);
  const svg = new Blob([text], { type: "image/svg+xml" });
  saveFile(kind === "png" ? await pngOf(svg, width, height) : svg, `memviz.${kind}`);
}

const seen = (/** @type {string} */ selector) => all(selector).find((node) => node.offsetParent);

/** @param {Part[]} parts */
function svgOf(parts) {
  const rows = rowsOf(parts);
  const width = Math.max(...rows.map((row) => row.reduce((sum, part) => sum + wide(part), 0))) + 2 * EDGE;
  const [ink, soft] = ["--mv-ink", "--mv-ink-2"].map((name) => token(document.body, name));
  const svg = shape("svg", { xmlns: "http://www.w3.org/2000/svg", "font-family": FONT, "font-size": 12 });
  const write = (/** @type {string} */ text, /** @type {Record<string, any>} */ look, y = EDGE, room = width - 2 * EDGE, x = EDGE, { line, letter } = { line: LINE, letter: LETTER }) =>
    wrapped(text, room / letter).reduce((below, words) => (svg.append(shape("text", { x, y: below + line - 6, fill: ink, ...look }, words)), below + line), y);
  let y = write(seen("#frame h1")?.innerText || "", { "font-size": HEAD.size, "font-weight": 700 }, EDGE, width - 2 * EDGE, EDGE, HEAD);
  const facts = seen("#frame .mv-facts:not(.mv-onerank *)")?.children || [];
  y = write(Array.from(facts, (fact) => fact.textContent).join(" · "), { fill: soft }, y);
  for (const row of rows) {
    const left = row.map((_, i) => row.slice(0, i).reduce((sum, part) => sum + wide(part), EDGE));
    const top = Math.max(...row.map((part, i) => write(part.title || "", { "font-weight": 700 }, y, wide(part), left[i])));
    row.forEach((part, i) => svg.append(drawn(part, left[i], top)));
    y = top + Math.max(...row.map((part) => part.height + part.room.upper + part.room.lower));
  }
  y = legend(svg, new Map(parts.flatMap(({ keys }) => keys.map(([colour, key]) => [key, colour]))), y, width);
  const height = y + EDGE;
  for (const [name, value] of Object.entries({ width, height, viewBox: `0 0 ${width} ${height}` })) svg.setAttribute(name, String(value));
  svg.prepend(shape("rect", { width, height, fill: token(document.body, "--mv-bg") }));
  return { text: new XMLSerializer().serializeToString(svg), width, height };
}

const wide = (/** @type {Part} */ part) => part.width + part.room.left + part.room.right;

/** Plots that begin at the same height of the page are one row. @param {Part[]} parts */
function rowsOf(parts) {
  /** @type {Map<number, Part[]>} */ const rows = new Map();
  for (const part of parts) {
    const top = Math.round(part.nodes[0]?.getBoundingClientRect().top ?? rows.size);
    rows.set(top, [...(rows.get(top) || []), part]);
  }
  return [...rows.values()];
}

/** @param {Part} part @param {number} x @param {number} y */
function drawn({ nodes, canvas, width, height, room }, x, y) {
  const group = shape("g", { transform: `translate(${x + room.left} ${y + room.upper})` });
  const picture = canvas && { href: canvas.node.toDataURL("image/png"), x: canvas.left, width: canvas.width, height };
  if (picture) group.append(shape("image", { ...picture, preserveAspectRatio: "none", "image-rendering": "pixelated" }));
  // An SVG of the page has its size from the page.
  for (const node of nodes.map(withLooks)) {
    if (node.tagName === "svg") for (const [name, value] of Object.entries({ width, height, overflow: "visible" })) node.setAttribute(name, String(value));
    group.append(node);
  }
  return group;
}

/** @param {Element} node */
function withLooks(node) {
  const copy = /** @type {Element} */ (node.cloneNode(true));
  const [from, to] = [node, copy].map((root) => [root, ...root.querySelectorAll("*")]);
  from.forEach((each, i) => {
    const style = getComputedStyle(each);
    for (const name of LOOKS) to[i].setAttribute(name, style.getPropertyValue(name));
    to[i].removeAttribute("class");
  });
  return copy;
}

/** What each colour means, in rows. @param {SVGElement} svg @param {Map<string, string>} keys @param {number} y @param {number} width */
function legend(svg, keys, y, width) {
  let x = EDGE;
  y += LINE;
  for (const [key, colour] of keys) {
    const wide = 26 + key.length * LETTER;
    if (x > EDGE && x + wide > width - EDGE) [x, y] = [EDGE, y + LINE];
    svg.append(shape("rect", { x, y: y - 10, width: 10, height: 10, fill: colour }), shape("text", { x: x + 15, y, fill: token(document.body, "--mv-ink") }, key));
    x += wide;
  }
  return y;
}

/** @param {string} text @param {number} most letters of a line */
function wrapped(text, most) {
  /** @type {string[]} */ const lines = [];
  for (const word of text.split(/\s+/)) {
    const last = lines.at(-1);
    if (last !== undefined && last.length + word.length < most) lines[lines.length - 1] = `${last} ${word}`;
    else if (word) lines.push(word);
  }
  return lines;
}

/** @param {Blob} svg @param {number} width @param {number} height @returns {Promise<Blob>} */
async function pngOf(svg, width, height) {
  const picture = new Image();
  picture.src = URL.createObjectURL(svg);
  await picture.decode();
  const canvas = el("canvas", { width: 2 * width, height: 2 * height });
  canvas.getContext("2d")?.drawImage(picture, 0, 0, 2 * width, 2 * height);
  URL.revokeObjectURL(picture.src);
  return new Promise((done, fail) => canvas.toBlob((file) => (file ? done(file) : fail(new Error("The picture is too large."))), "image/png"));
}
