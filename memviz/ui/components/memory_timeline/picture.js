// @ts-check
// The plot as it stands, with its axes and labels, as a picture that needs nothing else.
import { el, saveFile, shape } from "../base.js";

const MARGIN = { left: 60, right: 110, upper: 12, lower: 30 };
const LOOKS = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "stroke-linejoin", "font-size", "font-weight", "text-anchor", "paint-order"];

/** @typedef {import("./timeline.js").MemoryTimeline} MemoryTimeline */

/** @param {MemoryTimeline} timeline @param {"png" | "svg"} kind */
export async function savePicture(timeline, kind) {
  const { text, width, height } = svgOf(timeline);
  const svg = new Blob([text], { type: "image/svg+xml" });
  const badge = timeline.value?.badge;
  saveFile(kind === "png" ? await pngOf(svg, width, height) : svg, `memory-timeline${badge ? `-${badge}` : ""}.${kind}`);
}

/** @param {MemoryTimeline} timeline */
function svgOf(timeline) {
  const { viewport, labels, canvas } = timeline;
  const { left, right, upper, lower } = MARGIN;
  const copy = /** @type {SVGSVGElement} */ (labels.node.cloneNode(true));
  const [from, to] = [labels.node.querySelectorAll("*"), copy.querySelectorAll("*")];
  from.forEach((node, i) => {
    const style = getComputedStyle(node);
    for (const name of LOOKS) to[i].setAttribute(name, style.getPropertyValue(name));
    to[i].removeAttribute("class");
  });
  const size = { x: -left, y: -upper, width: viewport.width + left + right, height: viewport.height + upper + lower };
  const pixels = { href: canvas.node.toDataURL("image/png"), x: canvas.left, width: canvas.wide, height: viewport.height };
  copy.prepend(shape("rect", { ...size, fill: timeline.colour("--mv-bg") }), shape("image", { ...pixels, preserveAspectRatio: "none" }));
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("viewBox", `${-left} ${-upper} ${size.width} ${size.height}`);
  copy.setAttribute("width", String(size.width));
  copy.setAttribute("height", String(size.height));
  copy.setAttribute("font-family", "IBM Plex Sans, Helvetica, Arial, sans-serif");
  copy.removeAttribute("class");
  return { text: new XMLSerializer().serializeToString(copy), width: size.width, height: size.height };
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
