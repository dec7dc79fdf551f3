// A form whose HTML is made by memviz/ui, which escapes every text. See __init__.py for its value.
(() => {
  "use strict";
  const REST_MS = 250;
  const narrow = matchMedia("(max-width: 1000px)");

  class PlainForm {
    constructor(host, tell) {
      this.host = host;
      this.tell = tell;
      this.form = Object.assign(document.createElement("form"), { className: "mv-settings", noValidate: true });
      this.form.addEventListener("submit", (event) => event.preventDefault());
      this.form.addEventListener("input", (event) => this.changed(event.target));
      this.form.addEventListener("click", (event) => this.clicked(event));
      narrow.addEventListener("change", () => this.fold());
    }

    load(value) {
      const place = this.host.querySelector(".mv-form-place") || this.host;
      if (this.form.parentNode !== place) place.append(this.form);
      this.form.hidden = !value || !value.html;
      if (!value) return;
      if (value.version !== this.version) this.draw(value);
      for (const node of this.form.querySelectorAll("[data-fault]")) this.refuse(node, value.faults[node.dataset.fault] || "");
      for (const node of this.form.querySelectorAll("[data-part]")) {
        const html = value.parts[node.dataset.part] || "";
        if (this.shown.get(node) === html) continue;
        const focused = node.contains(document.activeElement);
        node.innerHTML = html;
        this.shown.set(node, html);
        if (focused) node.querySelector("button")?.focus();
      }
    }

    /** What was folded out and what had the focus stay so. */
    draw(value) {
      const focused = this.form.contains(document.activeElement) ? document.activeElement.name : "";
      const open = [...this.form.querySelectorAll("details")].map((each) => each.open);
      this.version = value.version;
      this.form.innerHTML = value.html;
      this.shown = new Map();
      [...this.form.querySelectorAll("details")].forEach((each, at) => (each.open = open[at] ?? each.open));
      this.fold();
      if (focused) [...this.form.elements].find((each) => each.name === focused)?.focus();
    }

    fold() {
      const all = this.form.querySelector("details.mv-fields");
      if (all) all.open = !narrow.matches || all.open;
    }

    refuse(node, words) {
      node.textContent = words;
      const field = this.form.elements[node.dataset.fault];
      if (field?.setAttribute) field.setAttribute("aria-invalid", String(Boolean(words)));
      if (words) node.closest("details.mv-more")?.setAttribute("open", "");
    }

    changed(field) {
      const fields = this.form.elements;
      const picked = field.dataset.for;
      const filled = field.dataset.fills;
      if (picked) {
        fields[picked].value = field.value === "off" ? "" : field.value;
        field.selectedIndex = 0;
      }
      if (filled) fields[filled].value = field.selectedOptions[0].dataset.usable || "";
      for (const each of fields) if (each.dataset.fills === field.name) each.value = "";
      clearTimeout(this.resting);
      this.resting = setTimeout(() => this.tell("input", this.values()), REST_MS);
    }

    clicked(event) {
      const button = event.target.closest("[data-act]");
      if (!button) return;
      clearTimeout(this.resting);
      this.tell("click", { ...this.values(), ...button.dataset });
    }

    values() {
      const values = {};
      for (const field of this.form.elements) {
        if (!field.name || (field.type === "radio" && !field.checked)) continue;
        if ("several" in field.dataset) {
          // Boxes of one name are one field: the values that are ticked.
          const before = values[field.name] || "";
          values[field.name] = field.checked ? [before, field.value].filter(Boolean).join(", ") : before;
          continue;
        }
        values[field.name] = field.type === "checkbox" ? field.checked : field.value;
      }
      return values;
    }
  }

  function mount(element, { props, watch, trigger }) {
    const form = new PlainForm(element, trigger);
    const load = () => form.load(props.value ? JSON.parse(props.value) : null);
    watch("value", load);
    load();
  }

  globalThis.memvizPlainForm = { mount };
})();
