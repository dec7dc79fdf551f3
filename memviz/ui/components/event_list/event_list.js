// Every event of one device as a list that stays fluid: only the rows in sight are in the page, their texts come a
// page at a time. README.md beside this file says what comes in and what goes out.
(() => {
  "use strict";
  const PAGE = 200;
  const MOST_PAGES = 60;
  const MOST_ASKED = 2;
  const ROW = 24;
  const NARROW_ROW = 34;
  /** Browsers cut elements off somewhere above ten million pixels, without a word. */
  const TALLEST = 8_000_000;
  /** Near both ends a pixel of the scroll bar is a pixel of the list, however long the list is. */
  const EDGE = 200_000;
  const SETTLE_MS = 150;
  const TYPED_MS = 150;
  const ECHO_MS = 3000;
  const [EVENT, TIME, ACTION, BYTES, EXACT, ADDRESS, STREAM, POOL, SITE, ANNOTATION, LOOK] = Array(11).keys();
  let made = 0;

  /** `from`: the least width of the list at which a column is shown. */
  const COLUMNS = [
    { name: "Event", cell: EVENT, width: "76px", number: true, from: () => 0 },
    { name: "Time, ms", cell: TIME, width: "92px", number: true, from: (value) => (value.has_times ? 620 : Infinity) },
    { name: "Action", cell: ACTION, width: "minmax(96px, 124px)", from: () => 0 },
    { name: "Bytes", cell: BYTES, width: "84px", number: true, from: () => 0 },
    { name: "Address", cell: ADDRESS, width: "122px", code: true, from: () => 620 },
    { name: "Stream", cell: STREAM, width: "minmax(44px, 76px)", number: true, from: (value) => (value.many_streams ? 620 : 940) },
    { name: "Pool", cell: POOL, width: "56px", from: (value) => (value.many_pools ? 620 : 940) },
    { name: "Site", cell: SITE, width: "minmax(110px, 3fr)", code: true, from: () => 0 },
    { name: "Annotation", cell: ANNOTATION, width: "minmax(90px, 2fr)", from: (value) => (value.has_annotations ? 860 : Infinity) },
  ];

  const { grouped } = globalThis.memvizWords;
  const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

  const classOf = (column) => `mve-${column.name.toLowerCase().replace(/\W.*/, "")}${column.number ? " mve-number" : ""}`;

  /** Texts are only ever set as text, never as markup. */
  function el(tag, attributes = {}, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name === "class") node.className = value;
      else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else node.setAttribute(name, value);
    }
    node.append(...children);
    return node;
  }

  /** Between the scroll bar's pixels and the list's, where the list is taller than an element may be. */
  class Scale {
    constructor(total, view) {
      this.height = Math.min(total, TALLEST);
      this.lastBar = Math.max(this.height - view, 0);
      this.lastTop = Math.max(total - view, 0);
      this.isPlain = total <= TALLEST;
      this.speed = (this.lastTop - 2 * EDGE) / Math.max(this.lastBar - 2 * EDGE, 1);
    }

    topOf(bar) {
      if (this.isPlain || bar <= EDGE) return bar;
      if (bar >= this.lastBar - EDGE) return this.lastTop - (this.lastBar - bar);
      return EDGE + (bar - EDGE) * this.speed;
    }

    barOf(top) {
      if (this.isPlain || top <= EDGE) return top;
      if (top >= this.lastTop - EDGE) return this.lastBar - (this.lastTop - top);
      return EDGE + (top - EDGE) / this.speed;
    }
  }

  class EventList {
    constructor(host, { server }) {
      this.id = ++made;
      this.host = host;
      this.server = server;
      this.key = null;
      this.build();
      this.listen();
    }

    build() {
      this.find = el("input", { type: "search", class: "mve-find", placeholder: "Site or annotation", "aria-label": "Find by site or annotation", maxlength: "200" });
      this.kinds = el("div", { class: "mve-kinds", role: "group", "aria-label": "Kinds of event" });
      this.total = el("span", { class: "mve-total", role: "status" });
      this.header = el("div", { class: "mve-row mve-header", role: "row", "aria-rowindex": "1" });
      this.rows = el("div", { class: "mve-rows", role: "presentation" });
      this.sizer = el("div", { class: "mve-sizer", role: "presentation" });
      this.scroller = el("div", { class: "mve-scroll", role: "rowgroup", tabindex: "-1" }, this.rows, this.sizer);
      this.nothing = el("p", { class: "mve-nothing", hidden: "" });
      this.grid = el("div", { class: "mve-grid", role: "grid", tabindex: "0", "aria-label": "Events; arrows move, Enter takes the timeline there" }, this.header, this.scroller);
      this.bar = el("div", { class: "mve-bar" }, this.find, this.kinds, this.total);
      this.root = el("div", { class: "mve", hidden: "" }, this.bar, this.grid, this.nothing);
      this.slots = [];
    }

    /** Gradio redraws the host's template when the value changes; what we built is put back into it. */
    attach() {
      const place = this.host.querySelector(".mve-place") || this.host;
      if (this.root.parentNode === place) return;
      place.append(this.root);
      // Taken out of the page, an element forgets where it was scrolled to.
      if (this.scale) this.setTop(this.top);
    }

    listen() {
      new ResizeObserver(() => this.resized()).observe(this.scroller);
      window.addEventListener("memviz:state", ({ detail }) => detail.key === this.key && this.follow(detail.at, true));
      this.scroller.addEventListener("scroll", () => this.scrolled());
      this.scroller.addEventListener("click", (event) => this.clicked(event));
      this.grid.addEventListener("keydown", (event) => this.keyed(event));
      this.find.addEventListener("input", () => {
        clearTimeout(this.typing);
        this.typing = setTimeout(() => this.choose({ text: this.find.value.trim() }), TYPED_MS);
      });
    }

    // -- what to show

    load(value) {
      this.attach();
      this.root.hidden = !value || !value.key;
      if (this.root.hidden) {
        this.key = null;
        return;
      }
      if (value.key !== this.key) this.start(value);
      // What the server says of the same trace is an echo of what the timeline said here just before.
      else if (performance.now() - this.heard > ECHO_MS) this.follow(value.at);
    }

    start(value) {
      this.key = value.key;
      this.value = value;
      this.heard = -Infinity;
      this.at = value.at;
      this.actions = [];
      this.text = "";
      this.find.value = "";
      this.showKinds();
      this.scale = null;
      this.columns = null;
      this.renew({ count: value.count, row: Math.max(value.at, 0), is_there: value.at >= 0 });
    }

    showKinds() {
      const chip = ([action, name, count]) =>
        el("button", { type: "button", class: "mve-kind", "aria-pressed": "false", onclick: (event) => this.toggle(action, event.currentTarget) }, `${name} `, el("b", {}, grouped(count)));
      this.kinds.replaceChildren(...this.value.actions.map(chip));
    }

    toggle(action, chip) {
      const isOn = this.actions.includes(action);
      chip.setAttribute("aria-pressed", String(!isOn));
      this.choose({ actions: isOn ? this.actions.filter((each) => each !== action) : [...this.actions, action] });
    }

    get isFiltered() {
      return Boolean(this.actions.length || this.text);
    }

    async choose({ actions = this.actions, text = this.text }) {
      if (actions === this.actions && text === this.text) return;
      [this.actions, this.text] = [actions, text];
      const place = await this.placeOf(this.at);
      if (place) this.renew(place);
    }

    request(more) {
      return { key: this.key, actions: this.actions, text: this.text, ...more };
    }

    /** Where an event stands in the list as it is filtered now; null when something else was asked for meanwhile. */
    async placeOf(at) {
      if (!this.isFiltered) return { row: Math.max(at, 0), is_there: at >= 0, count: this.value.count };
      const ticket = (this.ticket = (this.ticket || 0) + 1);
      this.root.dataset.choosing = "1";
      try {
        const place = await this.server.event_place(this.request({ at }));
        return ticket === this.ticket ? place : null;
      } catch (error) {
        this.total.textContent = `The events could not be read (${error.message || error}). Open the trace again.`;
        return null;
      } finally {
        if (ticket === this.ticket) delete this.root.dataset.choosing;
      }
    }

    /** Another list: other rows under the same numbers. */
    renew(place) {
      this.generation = (this.generation || 0) + 1;
      this.ticket = (this.ticket || 0) + 1;
      this.pages = new Map();
      this.asked = new Set();
      this.count = place.count;
      this.place = place;
      this.cursor = clamp(place.row, 0, Math.max(this.count - 1, 0));
      const all = this.value.count;
      this.bar.hidden = !all;
      this.total.textContent = this.isFiltered ? `${grouped(this.count)} of ${grouped(all)} events` : `${grouped(all)} events`;
      this.grid.setAttribute("aria-rowcount", String(this.count + 1));
      this.grid.hidden = !this.count;
      this.nothing.hidden = Boolean(this.count);
      this.nothing.textContent = all ? "No event fits. Clear the text, or choose other kinds." : "This file has no events: it holds the memory at one moment.";
      this.top = 0;
      this.scale = null;
      this.wanted = this.cursor;
      this.resized();
    }

    /** The moment changed elsewhere: its event comes into sight and is marked. */
    async follow(at, heard = false) {
      if (heard) this.heard = performance.now();
      if (!Number.isFinite(at) || at === this.at) return;
      this.at = at;
      const place = await this.placeOf(at);
      if (!place || at !== this.at) return;
      this.place = place;
      this.cursor = clamp(place.row, 0, Math.max(this.count - 1, 0));
      this.wanted = this.cursor;
      this.reveal();
      this.render();
    }

    // -- scrolling

    resized() {
      const view = this.scroller.clientHeight;
      if (!view || !this.value || !this.count) return;
      const narrow = this.root.clientWidth < 620;
      const before = this.scale && this.row ? this.top / this.row : 0;
      this.row = narrow ? NARROW_ROW : ROW;
      this.root.classList.toggle("mve-narrow", narrow);
      this.view = view;
      this.scale = new Scale(this.count * this.row, view);
      this.sizer.style.height = `${this.scale.height}px`;
      this.root.style.setProperty("--mve-scrollbar", `${this.scroller.offsetWidth - this.scroller.clientWidth}px`);
      this.showColumns();
      this.setTop(before * this.row);
      this.reveal();
      this.render();
    }

    /** Into the middle, unless it can be seen already. A list that is not shown remembers it. */
    reveal() {
      if (this.wanted === undefined || !this.scale || !this.scroller.clientHeight) return;
      const y = this.wanted * this.row;
      this.wanted = undefined;
      if (y < this.top || y + this.row > this.top + this.view) this.setTop(y - (this.view - this.row) / 2);
    }

    setTop(top) {
      this.top = clamp(top, 0, this.scale.lastTop);
      this.scroller.scrollTop = this.scale.barOf(this.top);
      this.scrolledTo = this.scroller.scrollTop;
    }

    scrolled() {
      if (!this.scale) return;
      const bar = this.scroller.scrollTop;
      const step = bar - this.scrolledTo;
      if (!step) return;
      this.scrolledTo = bar;
      // A long list moves as far as wheel or finger did; only the scroll bar itself goes by shares of the whole.
      const near = Math.abs(step) <= 4 * this.view && bar > 0 && bar < this.scale.lastBar;
      this.top = clamp(this.scale.isPlain || !near ? this.scale.topOf(bar) : this.top + step, 0, this.scale.lastTop);
      clearTimeout(this.settle);
      if (!this.scale.isPlain) this.settle = setTimeout(() => this.setTop(this.top), SETTLE_MS);
      if (!this.frame) {
        this.frame = requestAnimationFrame(() => {
          this.frame = 0;
          this.render();
        });
      }
    }

    // -- drawing

    showColumns() {
      const width = this.root.clientWidth;
      const columns = COLUMNS.filter((each) => each.from(this.value) <= width);
      const names = columns.map((each) => each.name).join();
      if (this.columns === names) return;
      this.columns = names;
      this.shown = columns;
      this.root.style.setProperty("--mve-columns", columns.map((each) => each.width).join(" "));
      this.grid.setAttribute("aria-colcount", String(columns.length));
      this.header.replaceChildren(...columns.map((each) => el("span", { role: "columnheader", class: classOf(each) }, each.name)));
      this.rows.replaceChildren();
      this.slots = [];
    }

    slot(row) {
      const needed = Math.ceil(this.view / this.row) + 2;
      while (this.slots.length < needed) {
        const cells = this.shown.map((each) => el("span", { role: "gridcell", class: `${classOf(each)}${each.code ? " mve-code" : ""}` }));
        const node = el("div", { class: "mve-row", role: "row", id: `mve-${this.id}-${this.slots.length}` }, ...cells);
        this.rows.append(node);
        this.slots.push({ node, cells, said: "" });
      }
      return this.slots[row % this.slots.length];
    }

    render() {
      if (!this.scale || !this.view) return;
      const started = performance.now();
      const first = Math.floor(this.top / this.row);
      const last = Math.min(Math.ceil((this.top + this.view) / this.row), this.count);
      const used = new Set();
      for (let row = first; row < last; row++) used.add(this.fill(row));
      for (const slot of this.slots) if (!used.has(slot)) slot.node.hidden = true;
      this.ask(first, last);
      this.root.dataset.drawMs = (performance.now() - started).toFixed(2);
      this.root.dataset.first = String(first);
    }

    fill(row) {
      const slot = this.slot(row);
      const { node } = slot;
      const cells = this.pages.get(Math.floor(row / PAGE))?.[row % PAGE];
      node.hidden = false;
      node.style.transform = `translateY(${row * this.row - this.top}px)`;
      const isMoment = this.place.is_there && row === this.place.row;
      const isCursor = row === this.cursor;
      const said = `${this.generation}|${row}|${Boolean(cells)}|${isMoment}|${isCursor}`;
      if (said === slot.said) return slot;
      slot.said = said;
      slot.row = row;
      node.className = `mve-row${cells ? ` mve-${cells[LOOK]}` : ""}${isMoment ? " mve-moment" : ""}${isCursor ? " mve-cursor" : ""}`;
      node.setAttribute("aria-rowindex", String(row + 2));
      node.setAttribute("aria-selected", String(isMoment));
      if (isCursor) this.grid.setAttribute("aria-activedescendant", node.id);
      this.shown.forEach((column, i) => this.write(slot.cells[i], column.cell, cells, row));
      return slot;
    }

    write(node, cell, cells, row) {
      if (!cells) {
        node.textContent = cell === EVENT && !this.isFiltered ? grouped(row) : cell === SITE ? "…" : "";
        node.removeAttribute("title");
        return;
      }
      const text = cell === EVENT ? grouped(cells[EVENT]) : cells[cell];
      node.textContent = cell === ACTION && cells[LOOK] === "oom" ? `✗ ${text}` : text;
      if (cell === BYTES) node.title = cells[EXACT];
      else if (cell === SITE || cell === ANNOTATION || cell === STREAM) node.title = text;
    }

    /** The pages in sight first; what has been scrolled past meanwhile is not asked for at all. */
    ask(first, last) {
      const pages = [];
      for (let page = Math.floor(first / PAGE); page * PAGE < last; page++) pages.push(page);
      for (const page of pages) {
        if (this.pages.has(page) || this.asked.has(page) || this.asked.size >= MOST_ASKED) continue;
        this.read(page);
      }
    }

    async read(page) {
      const { generation, asked } = this;
      asked.add(page);
      let rows = [];
      try {
        rows = await this.server.event_page(this.request({ first: page * PAGE, last: (page + 1) * PAGE }));
      } catch (error) {
        this.total.textContent = `The events could not be read (${error.message || error}). Open the trace again.`;
      }
      asked.delete(page);
      if (generation !== this.generation) return;
      this.pages.set(page, rows);
      // A Map keeps the order of insertion, so the first one is the oldest.
      if (this.pages.size > MOST_PAGES) this.pages.delete(this.pages.keys().next().value);
      this.render();
    }

    // -- what people do

    clicked(event) {
      const node = event.target.closest(".mve-row");
      const slot = this.slots.find((each) => each.node === node);
      if (!slot) return;
      this.cursor = slot.row;
      this.grid.focus({ preventScroll: true });
      this.take();
    }

    /** The timeline goes to the event under the cursor. */
    take() {
      const cells = this.pages.get(Math.floor(this.cursor / PAGE))?.[this.cursor % PAGE];
      const event = this.isFiltered ? cells?.[EVENT] : this.cursor;
      if (event === undefined) return;
      this.at = event;
      this.place = { row: this.cursor, is_there: true, count: this.count };
      this.heard = performance.now();
      this.render();
      window.dispatchEvent(new CustomEvent("memviz:go", { detail: { at: event } }));
    }

    keyed(event) {
      if (!this.scale || event.ctrlKey || event.metaKey || event.altKey) return;
      const page = Math.max(Math.floor(this.view / this.row) - 1, 1);
      const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
      if (event.key === "Enter") this.take();
      else if (event.key in steps) this.step(steps[event.key]);
      else return;
      event.preventDefault();
    }

    step(by) {
      this.cursor = clamp(this.cursor + by, 0, this.count - 1);
      const y = this.cursor * this.row;
      if (y < this.top) this.setTop(y);
      else if (y + this.row > this.top + this.view) this.setTop(y + this.row - this.view);
      this.render();
    }
  }

  function mount(element, { props, watch, server }) {
    const list = new EventList(element, { server });
    element.memvizEventList = list;
    watch("value", () => list.load(props.value));
    list.load(props.value);
  }

  globalThis.memvizEventList = { mount, Scale };
})();
