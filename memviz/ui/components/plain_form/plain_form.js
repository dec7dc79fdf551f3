// @ts-check
// A form whose HTML is made by memviz/ui, which escapes every text. See __init__.py for its value.
import { all, Component, el, latest, mounting, nearest, onceQuiet } from "../base.js";

const REST_MS = 250;
const MOST_READ = (1 << 20) + 1;
const narrow = matchMedia("(max-width: 1000px)");

/** @typedef {HTMLInputElement & Pick<HTMLSelectElement, "selectedIndex" | "selectedOptions">} Field */
/** @typedef {{ html: string, version: string, faults: Record<string, string>, parts: Record<string, string> }} Value */

class PlainForm extends Component {
  form = el("form", { class: "mv-settings", novalidate: "" });
  /** @type {string | null} */ version = null;
  /** @type {Map<Element, string>} */ shown = new Map();
  say = latest(this.tell.input);
  rest = onceQuiet(() => this.say(this.values()), REST_MS);

  build() {
    this.root = this.form;
    this.form.addEventListener("submit", (event) => event.preventDefault());
    this.form.addEventListener("input", (event) => this.changed(/** @type {Field} */ (event.target)));
    this.form.addEventListener("change", (event) => this.chosen(/** @type {HTMLInputElement} */ (event.target)));
    this.form.addEventListener("drop", (event) => this.dropped(event));
    this.form.addEventListener("click", (event) => this.clicked(event));
    narrow.addEventListener("change", () => this.fold());
  }

  /** @param {Value | null} value */
  load(value) {
    this.form.hidden = !value || !value.html;
    if (!value) return;
    // Of two answers the older may come last, as prices still do after the list was sorted; its parts are as good.
    const [version, shown] = [value.version, this.version || ""].map((words) => (/^\d+$/.test(words) ? Number(words) : NaN));
    if (value.version !== this.version && !(version < shown)) this.draw(value);
    for (const node of all("[data-fault]", this.form)) this.refuse(node, value.faults[node.dataset.fault || ""] || "");
    for (const node of all("[data-part]", this.form)) this.fill(node, value.parts[node.dataset.part || ""] || "");
  }

  fields() {
    return /** @type {Field[]} */ ([...this.form.elements]);
  }

  /** @param {string | undefined} name */
  field(name) {
    return this.fields().find((field) => name && field.name === name);
  }

  /** @param {HTMLElement} node @param {string} html */
  fill(node, html) {
    if (this.shown.get(node) === html) return;
    const isFocused = node.contains(document.activeElement);
    node.innerHTML = html;
    this.shown.set(node, html);
    if (isFocused) node.querySelector("button")?.focus();
  }

  /** What was folded out and what had the focus stay so. @param {Value} value */
  draw(value) {
    const focused = /** @type {Field | null} */ (this.form.contains(document.activeElement) ? document.activeElement : null)?.name;
    const open = [...this.form.querySelectorAll("details")].map((details) => details.open);
    this.version = value.version;
    this.form.innerHTML = value.html;
    this.shown = new Map();
    [...this.form.querySelectorAll("details")].forEach((details, at) => (details.open = open[at] ?? details.open));
    this.fold();
    this.field(focused)?.focus();
  }

  fold() {
    if (!narrow.matches) this.open(true);
  }

  /** @param {boolean} isOpen */
  open(isOpen) {
    for (const fields of /** @type {HTMLDetailsElement[]} */ (all("details.mv-fields", this.form))) fields.open = isOpen;
  }

  /** @param {HTMLElement} node @param {string} words */
  refuse(node, words) {
    node.textContent = words;
    const field = this.form.elements.namedItem(node.dataset.fault || "");
    if (field instanceof Element) field.setAttribute("aria-invalid", String(Boolean(words)));
    if (words) node.closest("details.mv-more")?.setAttribute("open", "");
  }

  /** @param {Field} field */
  changed(field) {
    // A file says nothing by itself; its text does, once it is read.
    if (field.type === "file") return;
    const chosen = this.field(field.dataset.for);
    if (chosen) {
      chosen.value = field.value === "off" ? "" : field.value;
      field.selectedIndex = 0;
    }
    const filled = this.field(field.dataset.fills);
    if (filled) filled.value = field.selectedOptions[0].dataset.usable || "";
    for (const other of this.fields()) if (other.dataset.fills === field.name) other.value = "";
    this.rest();
  }

  /** A file's text goes into the field that it is for; the file itself goes nowhere.
   * @param {HTMLInputElement} field */
  chosen(field) {
    const into = this.field(field.dataset.reads);
    if (into && field.files?.[0]) this.read(field.files[0], into);
  }

  /** @param {DragEvent} event */
  dropped(event) {
    const into = nearest(event, "[data-dropped]");
    const file = event.dataTransfer?.files[0];
    if (!into || !file) return;
    event.preventDefault();
    this.read(file, /** @type {Field} */ (/** @type {unknown} */ (into)));
  }

  /** @param {File} file @param {Field} into */
  async read(file, into) {
    into.value = await file.slice(0, MOST_READ).text();
    this.changed(into);
  }

  /** @param {MouseEvent} event */
  clicked(event) {
    const button = nearest(event, "[data-act]");
    if (!button) return;
    this.rest.cancel();
    // To what comes of it: that stands at the top, and on a narrow screen below all fields.
    if (button.hasAttribute("data-act-above") && narrow.matches) this.open(false);
    if (button.hasAttribute("data-act-above")) window.scrollTo({ top: 0 });
    this.tell.click({ ...this.values(), ...button.dataset });
  }

  /** With `turn`, by which the server tells which of two was told last: they can overtake each other. */
  values() {
    /** @type {Record<string, string | boolean>} */ const values = { turn: String(Date.now()) };
    for (const field of this.fields()) {
      if (!field.name || (field.type === "radio" && !field.checked)) continue;
      if ("several" in field.dataset) {
        // Boxes of one name are one field: the values that are ticked.
        const before = values[field.name] || "";
        values[field.name] = field.checked ? [before, field.value].filter(Boolean).join(", ") : before;
      } else values[field.name] = field.type === "checkbox" ? field.checked : field.value;
    }
    return values;
  }
}

export const mount = mounting(PlainForm);
