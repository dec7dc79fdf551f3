// The form of the What if tab. Its HTML is made by memviz/ui/views/settings_form.py, which escapes every text; here it
// is drawn when its version changes, its fields are told a moment after the last change, and refusals are put in place.
(() => {
  "use strict";
  const REST_MS = 250;
  const narrow = matchMedia("(max-width: 1000px)");

  class SettingsForm {
    constructor(host, { tell }) {
      this.host = host;
      this.tell = tell;
      this.form = Object.assign(document.createElement("form"), { className: "mv-settings", noValidate: true });
      this.fields = document.createElement("div");
      this.pasted = this.pastedParts();
      this.form.append(this.fields, this.pasted.root);
      this.form.addEventListener("submit", (event) => event.preventDefault());
      this.form.addEventListener("input", (event) => this.changed(event.target));
      this.form.addEventListener("click", (event) => this.clicked(event));
      // On a wide page there is nothing to open it with.
      narrow.addEventListener("change", () => {
        const details = this.fields.querySelector("details");
        if (details) details.open = !narrow.matches;
      });
    }

    pastedParts() {
      const make = (tag, name, text = "") => Object.assign(document.createElement(tag), { className: name, textContent: text });
      const root = make("div", "mv-pasted");
      const head = make("p", "");
      const copy = make("button", "", "Copy");
      const code = make("code", "");
      copy.type = "button";
      head.append(make("span", "", "Paste before starting Python"), copy);
      root.append(head, code);
      return { root, copy, code };
    }

    load(value) {
      const place = this.host.querySelector(".mv-form-place") || this.host;
      if (this.form.parentNode !== place) place.append(this.form);
      this.form.hidden = !value || !value.html;
      if (this.form.hidden) return;
      if (value.version !== this.version) this.draw(value);
      for (const node of this.form.querySelectorAll("[data-fault]")) {
        node.textContent = value.faults[node.dataset.fault] || "";
        const field = this.form.elements[node.dataset.fault];
        if (field && field.setAttribute) field.setAttribute("aria-invalid", String(Boolean(node.textContent)));
      }
      this.pasted.root.hidden = !value.conf;
      // It may break where a person would break it.
      const parts = value.conf.split(/(?<=[=,])/);
      this.pasted.code.replaceChildren(...parts.flatMap((part) => [part, document.createElement("wbr")]));
      this.pasted.copy.dataset.mvCopy = value.conf;
    }

    draw(value) {
      const focused = this.form.contains(document.activeElement) ? document.activeElement.name : "";
      const open = this.fields.querySelector("details")?.open;
      this.version = value.version;
      this.fields.innerHTML = value.html;
      const details = this.fields.querySelector("details");
      if (details) details.open = open ?? !narrow.matches;
      if (focused) this.form.elements[focused]?.focus();
    }

    /** A pick from the usual values goes into its field; a card says how much memory there is, typing ends the card. */
    changed(field) {
      if (field.dataset.for) {
        this.form.elements[field.dataset.for].value = field.value === "off" ? "" : field.value;
        field.selectedIndex = 0;
      }
      const { card, memory } = this.form.elements;
      if (field === card) memory.value = card.selectedOptions[0].dataset.usable || "";
      if (field === memory) card.value = "";
      clearTimeout(this.resting);
      this.resting = setTimeout(() => this.tell("input", this.values()), REST_MS);
    }

    clicked(event) {
      const button = event.target.closest("[data-act]");
      if (!button) return;
      clearTimeout(this.resting);
      this.tell("click", { ...this.values(), act: button.dataset.act });
    }

    values() {
      const values = {};
      for (const field of this.form.elements) if (field.name) values[field.name] = field.type === "checkbox" ? field.checked : field.value;
      return values;
    }
  }

  function mount(element, { props, watch, trigger }) {
    const form = new SettingsForm(element, { tell: trigger });
    watch("value", () => form.load(props.value));
    form.load(props.value);
  }

  globalThis.memvizSettingsForm = { mount };
})();
