// @ts-check
// The columns of the list, and what each writes into a cell.
import { el } from "../base.js";
import { grouped } from "../words.js";

// Where what stands in a line, in the order of EventRow's fields.
const EVENT = 0;
const TIME = 1;
const ACTION = 2;
const BYTES = 3;
const EXACT = 4;
const ADDRESS = 5;
const STREAM = 6;
const POOL = 7;
const SITE = 8;
const ANNOTATION = 9;
const LOOK = 10;
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

/** Those that a list of this width has room for.
 * @param {number} width @param {Value} value */
export const columnsWithin = (width, value) => COLUMNS.filter((column) => column.from(value) <= width);

/** @param {Column} column */
const classOf = (column) => `mve-${column.name.toLowerCase().replace(/\W.*/, "")}${column.number ? " mve-number" : ""}`;

/** @param {Column} column */
export const headerCell = (column) => el("span", { role: "columnheader", class: classOf(column) }, column.name);

/** @param {Column} column */
export const emptyCell = (column) => el("span", { role: "gridcell", class: `${classOf(column)}${column.code ? " mve-code" : ""}` });

/** @param {Line | undefined} line */
export const lookOf = (line) => (line ? ` mve-${line[LOOK]}` : "");

/** @param {Line} line */
export const eventOf = (line) => Number(line[EVENT]);

/** @param {HTMLElement} node @param {Column} column @param {Line} line */
export function write(node, { cell }, line) {
  const text = cell === EVENT ? grouped(eventOf(line)) : String(line[cell]);
  node.textContent = cell === ACTION && line[LOOK] === "oom" ? `✗ ${text}` : text;
  if (cell === BYTES) node.title = String(line[EXACT]);
  else if (TITLED.includes(cell)) node.title = text;
}

/** Until its line is there.
 * @param {HTMLElement} node @param {Column} column @param {string} event its number, as far as it is known */
export function writeWaiting(node, { cell }, event) {
  node.textContent = cell === EVENT ? event : cell === SITE ? "…" : "";
  node.removeAttribute("title");
}
