// A form whose HTML is made by memviz/ui/views, which escapes every text. See __init__.py for its value.
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
      this.form.addEventListener("input", () => this.changed());
      this.form.addEventListener("click", (event) => this.clicked(event));
      narrow.addEventListener("change", () => this.fold());
    }

    load(value) {
      const place = this.host.querySelector(".mv-form-place") || this.host;
      if (this.form.parentNode !== place) place.append(this.form);
      this.form.hidden = !value || !value.html;
      if (!value) return;
      if (value.version !== this.version) this.draw(value);
      for (const node of this.form.querySelectorAll("[data-fault]")) node.textContent = value.faults[node.dataset.fault] || "";
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

    changed() {
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
