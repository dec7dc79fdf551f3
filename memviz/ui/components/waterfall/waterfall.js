// What people do in a comparison, apart from its timelines:
//   [data-compare-by][data-compare-row]  hovering or focusing lights those allocations in all its timelines at once;
//                                        a click on it keeps them lit, Esc or another click ends that
//   [data-take]                          a click saves the table or the whole comparison as a file
//   [data-letter]                        a trace's badge: dragging it onto A, or Shift and the letter, makes it A
// Which allocations a row has in each trace is asked of the server once for all of them.
(() => {
  "use strict";
  const R = globalThis.memvizRaster;
  const MOST_KEPT = 32;
  const ROW = "[data-compare-row]";

  const decoded = async ({ header, body, bits }) => {
    // A saved page answers out of itself, unpacked already.
    if (bits) return bits;
    const buffer = Uint8Array.from(atob(body), (c) => c.charCodeAt(0));
    return (await R.unpack(header, buffer)).bits;
  };
  const nearest = (event, what) => (event.target instanceof Element ? event.target.closest(what) : null);
  const typing = (node) => node instanceof HTMLElement && (node.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(node.tagName));

  class Rows {
    constructor(element, server) {
      this.element = element;
      this.server = server;
      this.known = new Map();
      this.keep = null;
      this.shown = "";
      document.addEventListener("pointerover", (event) => this.here() && this.hover(nearest(event, ROW)));
      document.addEventListener("focusin", (event) => this.here() && this.hover(nearest(event, ROW)));
      document.addEventListener("focusout", () => this.here() && this.hover(null));
      document.addEventListener("click", (event) => this.here() && this.click(event));
      document.addEventListener("keydown", (event) => this.here() && this.key(event), true);
      for (const name of ["dragstart", "dragover", "drop"]) document.addEventListener(name, (event) => this.here() && this.drag(event));
    }

    table() {
      return this.element.querySelector("[data-sides]");
    }

    here() {
      return this.element.offsetParent !== null && this.table() !== null;
    }

    hover(node) {
      this.light(node ? this.named(node) : this.keep);
    }

    named(node) {
      return { by: node.dataset.compareBy, row: node.dataset.compareRow };
    }

    /** The newest wish wins: answers that come late are kept for the next time only. */
    async light(row) {
      const { sides, linked } = this.table().dataset;
      const name = row ? JSON.stringify([linked, row.by, row.row]) : "";
      if (name === this.shown) return;
      this.shown = name;
      let masks = null;
      if (row) {
        masks = this.known.get(name) || (await this.ask(name, JSON.parse(sides), row));
        if (this.shown !== name) return;
      }
      window.dispatchEvent(new CustomEvent("memviz:lit", { detail: { linked, masks } }));
    }

    async ask(name, sides, row) {
      const { lit } = await this.server.compared_rows({ sides, ...row });
      const bits = await Promise.all(lit.map(decoded));
      const masks = Object.fromEntries(sides.map((key, i) => [key, bits[i]]));
      if (this.known.size >= MOST_KEPT) this.known.delete(this.known.keys().next().value);
      this.known.set(name, masks);
      return masks;
    }

    click(event) {
      const taken = nearest(event, "[data-take]");
      if (taken && this.element.contains(taken)) return this.take(taken);
      const node = nearest(event, ROW);
      // A heading or badge in a row does its own thing.
      if (!node || nearest(event, "[data-act]")) return;
      const row = this.named(node);
      const same = this.keep && this.keep.by === row.by && this.keep.row === row.row;
      this.keep = same ? null : row;
      this.mark();
      this.light(this.keep);
    }

    /** After every redraw too: what is kept stays kept while its row is there. */
    mark() {
      const { keep } = this;
      for (const node of document.querySelectorAll(ROW)) {
        const pressed = Boolean(keep) && node.dataset.compareBy === keep.by && node.dataset.compareRow === keep.row;
        node.classList.toggle("mv-litrow", pressed);
        const button = node.matches("button") ? node : node.querySelector("button[aria-pressed]");
        if (button) button.setAttribute("aria-pressed", String(pressed));
      }
    }

    redrawn() {
      if (!this.table()) return;
      if (this.keep && ![...document.querySelectorAll(ROW)].some((node) => node.dataset.compareRow === this.keep.row)) this.keep = null;
      this.mark();
      if (this.here()) this.light(this.keep);
    }

    key(event) {
      if (event.ctrlKey || event.metaKey || event.altKey || typing(event.target)) return;
      if (event.key === "Escape" && this.keep) {
        this.keep = null;
        this.mark();
        return this.light(null);
      }
      const letter = event.shiftKey && /^[A-H]$/.test(event.key) && document.querySelector(`[data-letter="${event.key}"]`);
      if (!letter) return;
      // Before a focused timeline takes it for one of its own keys.
      event.preventDefault();
      event.stopPropagation();
      letter.click();
    }

    drag(event) {
      const badge = nearest(event, "[data-letter]");
      if (event.type === "dragstart") this.dragged = badge;
      const onto = badge || nearest(event, "tr")?.querySelector("[data-letter]");
      if (!this.dragged || !onto || onto.dataset.letter !== "A") return;
      event.preventDefault();
      if (event.type === "drop") this.dragged.click();
    }

    async take(button) {
      const { sides, by } = this.table().dataset;
      const words = button.textContent;
      button.disabled = true;
      button.textContent = "Writing…";
      try {
        const { name, type, text } = await this.server.compared_file({ kind: button.dataset.take, sides: JSON.parse(sides), by });
        const link = document.createElement("a");
        link.href = URL.createObjectURL(new Blob([text], { type }));
        link.download = name;
        link.click();
        setTimeout(() => URL.revokeObjectURL(link.href), 10000);
      } finally {
        button.disabled = false;
        button.textContent = words;
      }
    }
  }

  function mount(element, { watch, trigger, server }) {
    const rows = new Rows(element, server);
    element.addEventListener("click", (event) => {
      const target = event.target.closest("[data-act]");
      if (target && element.contains(target)) trigger("click", { ...target.dataset });
    });
    watch("value", () => rows.redrawn());
  }

  globalThis.memvizWaterfall = { mount };
})();
