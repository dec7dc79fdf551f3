// One device's memory timeline: overview, phases, every allocation, and what pointer, wheel, fingers and keys do.
// Drawing is in raster.js. README.md beside this file says what comes in and what goes out.
(() => {
  "use strict";
  const R = globalThis.memvizRaster;
  const { grouped, bytesText, byteTicks, timeTick, roundStep } = globalThis.memvizWords;
  const OVERVIEW = 30;
  const SMALLEST_VIEW = 4;
  const MOST_COLUMNS = 2400;
  const SETTLE_MS = 120;
  const MOVING_MS = 7;
  const SHARES = [1, 1 / 2, 1 / 3];
  const TELL_MS = 90;
  const FOLD_SHARE = 0.002;
  const MOST_AT_ONCE = 1 << 21;
  const MOST_GIVEN = 3;
  const MOST_PATIENCE_MS = 3000;
  const SVG = "http://www.w3.org/2000/svg";
  let made = 0;

  // -- small helpers ----------------------------------------------------------------------------------

  /** Texts are only ever set as text, never as markup. */
  function el(tag, attributes = {}, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name === "class") node.className = value;
      else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else if (value !== null && value !== undefined) node.setAttribute(name, value);
    }
    node.append(...children);
    return node;
  }

  function shape(tag, attributes, text) {
    const node = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    if (text !== undefined) node.textContent = text;
    return node;
  }

  /** Labels beside a plot, [y, figure, words]: each at its height, or as near below or above as none is covered. */
  function spread(labels, height) {
    const room = ([, figure]) => (figure ? 30 : 16);
    const placed = labels.map((label) => [clamp(label[0], 8, height - 14), ...label.slice(1)]).sort((a, b) => a[0] - b[0]);
    for (let i = 1; i < placed.length; i++) placed[i][0] = Math.max(placed[i][0], placed[i - 1][0] + room(placed[i - 1]));
    let most = height - 14;
    for (let i = placed.length - 1; i >= 0; i--) {
      placed[i][0] = Math.min(placed[i][0], most);
      if (i) most = placed[i][0] - room(placed[i - 1]);
    }
    return placed;
  }

  /** The whole name, else its first word, else nothing: a label is never cut. */
  function phaseLabel(name, width) {
    const room = (width - 12) / 6.2;
    const first = name.split(/[#.\s]/)[0];
    return name.length <= room ? name : first.length <= room ? first : "";
  }

  const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
  const isDark = () => document.body.classList.contains("dark");
  /** 0xRRGGBB as a little-endian pixel. */
  const pixel = (rgb) => (0xff000000 | ((rgb & 0xff) << 16) | (rgb & 0xff00) | (rgb >> 16)) >>> 0;
  const pixels = (list) => Uint32Array.from(list, pixel);
  const css = (rgb) => `#${rgb.toString(16).padStart(6, "0")}`;

  /** {header, columns}, or {header, spans} of the piece "timeline". */
  async function piece(server, request) {
    const { header, body, columns } = await server.timeline_piece(request);
    // A saved page answers out of itself, unpacked already.
    if (columns) return { header, columns };
    if (body.length > MOST_AT_ONCE && globalThis.memvizAside) return globalThis.memvizAside(request.piece, header, body);
    return (await R.ready(request.piece, header, R.bytesOf(body))).made;
  }

  /** Pieces that came before anybody asked for them, by trace, until they are drawn. */
  const given = new Map();

  function give(key, name, made) {
    if (!given.has(key)) given.set(key, {});
    given.get(key)[name] = made;
    while (given.size > MOST_GIVEN) given.delete(given.keys().next().value);
    for (const each of mounted) each.hearOf(key);
  }

  // -- the component ----------------------------------------------------------------------------------

  class MemoryTimeline {
    constructor(host, { tell, server }) {
      this.id = ++made;
      this.host = host;
      this.tell = tell;
      this.server = server;
      this.view = { first: 0, last: 1 };
      this.moment = 0;
      this.pin = -1;
      this.range = null;
      this.lit = null;
      this.axis = "event";
      this.order = "category";
      this.meaning = "category";
      this.build();
      this.listen();
    }

    build() {
      this.root = el("div", { class: "mvt" });
      this.legend = el("div", { class: "mvt-legend", role: "list", "aria-label": "What the colours mean, with bytes at the moment" });
      this.orderChoice = this.choice("Stack", [["category", "by colour"], ["age", "by age"]], (value) => this.setOrder(value));
      this.meaningChoice = this.choice("Colour", [["category", "category"], ["site", "site"], ["module", "module"], ["size", "size"]], (value) => this.setMeaning(value));
      this.axisSwitch = el("div", { class: "mvt-switch", role: "group", "aria-label": "Axis" },
        this.axisEvent = el("button", { type: "button", "aria-pressed": "true", onclick: () => this.setAxis("event") }, "Event"),
        this.axisTime = el("button", { type: "button", "aria-pressed": "false", onclick: () => this.setAxis("time") }, "Time"));
      const button = (text, label, act) => el("button", { type: "button", class: "mvt-button", "aria-label": label, title: label, onclick: act }, text);
      const zooms = el("div", { class: "mvt-zooms" },
        button("−", "Zoom out (−)", () => this.zoomAbout(this.middle(), 1.6, true)),
        button("+", "Zoom in (+)", () => this.zoomAbout(this.middle(), 1 / 1.6, true)),
        button("All", "Show all (0)", () => this.showAll(true)));
      this.bar = el("div", { class: "mvt-bar" }, this.legend, el("div", { class: "mvt-controls" }, this.orderChoice.label, this.meaningChoice.label, this.axisSwitch, zooms));
      this.title = el("div", { class: "mvt-title", hidden: "" });
      this.overview = el("canvas", { class: "mvt-overview", "aria-hidden": "true" });
      this.window = el("div", { class: "mvt-window", "aria-hidden": "true" });
      this.phases = el("div", { class: "mvt-phases", "aria-hidden": "true" });
      this.canvas = el("canvas", { class: "mvt-canvas", "aria-hidden": "true" });
      this.svg = shape("svg", { class: "mvt-svg", "aria-hidden": "true" });
      this.tip = el("div", { class: "mvt-tip", role: "tooltip", hidden: "" });
      this.plot = el("div", { class: "mvt-plot", tabindex: "0", role: "application", "aria-describedby": `mvt-keys-${this.id}` }, this.canvas, this.svg, this.tip);
      this.keysHelp = el("div", { class: "mvt-hidden", id: `mvt-keys-${this.id}` },
        "Left and right pan, plus and minus zoom, 0 shows all, P goes to the peak, Shift with left or right moves one event, up and down walk the stack, Enter pins, Escape undoes, T changes the axis.");
      this.live = el("div", { class: "mvt-hidden", "aria-live": "polite" });
      this.overviewRow = el("div", { class: "mvt-overview-row" }, this.overview, this.window);
      this.waiting = el("div", { class: "mvt-waiting", role: "status" });
      this.root.append(this.bar, this.title, this.overviewRow, this.phases, this.plot, this.keysHelp, this.live, this.waiting);
    }

    choice(name, options, change) {
      const select = el("select", { "aria-label": name, onchange: () => change(select.value) }, ...options.map(([value, text]) => el("option", { value }, text)));
      return { select, label: el("label", { class: "mvt-choice" }, `${name} `, select) };
    }

    /** Gradio redraws the host's template when the value changes; what we built is put back into it. */
    attach() {
      const place = this.host.querySelector(".mvt-place") || this.host;
      if (this.root.parentNode !== place) place.append(this.root);
    }

    // -- data

    async load(value) {
      this.attach();
      if (!value || !value.key) {
        // Nothing is open yet; but what is being read is shown.
        if (this.total) return;
        this.root.hidden = true;
        this.value = null;
        return;
      }
      const ticket = (this.ticket = (this.ticket || 0) + 1);
      this.root.hidden = false;
      this.root.classList.toggle("mvt-plain", Boolean(value.plain));
      if (this.value && this.value.key === value.key) {
        this.value = { ...this.value, ...value };
        this.describe(this.value);
        this.applyState(value.state || {});
        this.joinOthers();
        return;
      }
      this.waiting.textContent = this.total ? "" : "Drawing the timeline…";
      try {
        const [timeline, groups] = this.givenPieces(value) || (await this.askedPieces(value));
        if (ticket !== this.ticket) return;
        given.delete(value.key);
        this.value = value;
        this.times = null;
        this.sites = null;
        this.total = null;
        delete this.root.dataset.total;
        this.spans = R.Spans.of(timeline.spans);
        this.useGroups(groups);
        this.waiting.textContent = "";
        this.start(value);
      } catch (error) {
        if (ticket === this.ticket) this.waiting.textContent = `The timeline could not be drawn (${error.message || error}). Open the trace again.`;
      }
    }

    givenPieces({ key, state }) {
      const { timeline, groups } = given.get(key) || {};
      return timeline && groups && ((state || {}).colour || "category") === groups.header.meaning ? [timeline, groups] : null;
    }

    askedPieces({ key, state }) {
      const meaning = (state || {}).colour || "category";
      return Promise.all([piece(this.server, { key, piece: "timeline" }), piece(this.server, { key, piece: "groups", meaning })]);
    }

    // -- while a file is being read

    /** The total alone, in grey, of a trace that is not whole yet; see total.js. */
    showTotal(total) {
      this.attach();
      this.ticket = (this.ticket || 0) + 1;
      [this.value, this.spans, this.total] = [null, null, total];
      this.root.hidden = false;
      this.root.classList.remove("mvt-plain");
      this.title.hidden = true;
      this.root.dataset.total = "";
      delete this.root.dataset.drawn;
      this.waiting.textContent = total.words;
      this.schedule();
    }

    endTotal() {
      if (!this.total) return;
      this.total = null;
      delete this.root.dataset.total;
      this.load(null);
    }

    /** Resolves when this trace's allocations are on the screen, or some time later anyhow. */
    drawnOf(key) {
      const begun = performance.now();
      return new Promise((done) => {
        const look = () => {
          const isDrawn = this.value && this.value.key === key && this.root.dataset.drawn;
          if (isDrawn || performance.now() - begun > MOST_PATIENCE_MS) requestAnimationFrame(() => setTimeout(done));
          else setTimeout(look, 10);
        };
        look();
      });
    }

    hearOf(key) {
      if (this.total && this.total.key === key && this.givenPieces({ key })) this.load({ key });
    }

    useGroups({ header, columns }) {
      this.group = columns.group;
      this.groupLabels = header.labels;
      this.groupColours = header.colours;
      this.palettes = {};
      for (const [mode, table] of Object.entries(header.palettes)) this.palettes[mode] = pixels(table);
      this.groupCount = header.labels.length;
      this.meaning = header.meaning;
      this.meaningChoice.select.value = header.meaning;
    }

    /** What is known besides the picture; it may come after it. */
    describe(value) {
      this.hasTimes = Boolean(value.has_times);
      this.axisTime.disabled = !this.hasTimes;
      this.axisTime.title = this.hasTimes ? "" : "This trace has no times";
      this.plot.setAttribute("aria-label", `Memory timeline. ${value.label || ""}`);
    }

    start(value) {
      const { spans } = this;
      this.describe(value);
      this.axis = "event";
      this.pin = -1;
      this.range = null;
      this.lit = null;
      this.stackPlace = -1;
      this.placed = "";
      this.moment = spans.peak;
      this.view = { first: 0, last: spans.instants };
      const largestReserved = spans.reserved.reduce((a, b) => Math.max(a, b), 0);
      this.top = value.top || Math.max(largestReserved, spans.live[spans.peak], 1) * 1.06;
      this.applyState(value.state || {});
      this.showAxis();
      this.joinOthers();
      this.resize();
    }

    // -- several that are linked: one byte scale, and axes that move together

    async joinOthers() {
      const { value } = this;
      this.title.hidden = !value.badge;
      if (!value.linked) return;
      if (value.badge) this.title.replaceChildren(el("span", { class: "mvt-badge" }, value.badge), el("span", { class: "mvt-name", title: value.name }, value.name));
      this.top = value.top;
      const axis = value.align.time && value.axis === "time" ? "time" : "event";
      if (axis !== this.axis) await this.setAxis(axis);
      if (value !== this.value) return;
      const placed = JSON.stringify([value.linked, this.axis, value.align[this.axis]]);
      if (placed !== this.placed) {
        this.placed = placed;
        const [first, last] = value.align[this.axis].focus;
        this.view = { first: this.fromShared(first), last: this.fromShared(last) };
      }
      this.redraw(true);
      window.dispatchEvent(new CustomEvent("memviz:joined", { detail: { linked: value.linked } }));
    }

    /** Two places of this axis that stand where the others' two stand; null for one that is alone. */
    alignment() {
      return (this.value && this.value.linked && this.value.align[this.axis]) || null;
    }

    fromShared(share) {
      const [begin, end] = this.alignment().span;
      return begin + share * (end - begin);
    }

    toShared(place) {
      const [begin, end] = this.alignment().span;
      return (place - begin) / (end - begin);
    }

    applyState(state) {
      if (!this.spans) return;
      const last = this.spans.instants;
      if (Number.isFinite(state.at)) this.moment = clamp(state.at + 1, 0, last - 1);
      if (Number.isFinite(state.from) && Number.isFinite(state.to)) this.view = this.bounded(state.from + 1, state.to + 2);
      if (Number.isFinite(state.pin)) this.pin = clamp(state.pin, -1, this.spans.count - 1);
      if (state.order) this.order = state.order;
      this.orderChoice.select.value = this.order;
      this.showLit(state.lit);
      if (state.axis === "time" && this.hasTimes && this.axis !== "time") this.setAxis("time");
      else this.redraw();
    }

    async showLit(lit) {
      if (lit === undefined) return;
      this.litWanted = lit;
      if (!lit) this.lit = null;
      else {
        const { columns } = await piece(this.server, { key: this.value.key, piece: "lit", ...lit });
        if (this.litWanted !== lit) return;
        this.lit = this.maskOf(columns.bits);
      }
      this.redraw();
    }

    /** `bits` has one per allocation, from somebody who asked for several timelines at once; null ends it. */
    showMask(bits) {
      if (!this.spans) return;
      this.lit = bits ? this.maskOf(bits) : null;
      this.redraw();
    }

    maskOf(bits) {
      const mask = new Uint8Array(this.spans.count);
      for (let i = 0; i < mask.length; i++) mask[i] = (bits[i >> 3] >> (i & 7)) & 1;
      return mask;
    }

    async setMeaning(meaning) {
      const key = this.value.key;
      const groups = await piece(this.server, { key, piece: "groups", meaning });
      if (!this.value || this.value.key !== key) return;
      this.useGroups(groups);
      this.lit = null;
      this.redraw();
      this.say();
    }

    setOrder(order) {
      this.order = order;
      this.redraw();
      this.say();
    }

    async setAxis(axis) {
      if (axis === this.axis || (axis === "time" && !this.hasTimes)) return;
      if (axis === "time" && !this.times) {
        const { columns } = await piece(this.server, { key: this.value.key, piece: "times" });
        this.times = R.summed(R.wide(columns.time_low, columns.time_high));
      }
      const [first, last] = [this.instantAt(this.view.first), this.instantAt(this.view.last)];
      this.axis = axis;
      this.view = first <= 0 && last >= this.spans.instants - 1 ? this.whole() : this.bounded(this.placeOf(first), this.placeOf(last));
      this.showAxis();
      this.redraw();
      this.say();
    }

    showAxis() {
      this.axisEvent.setAttribute("aria-pressed", String(this.axis === "event"));
      this.axisTime.setAttribute("aria-pressed", String(this.axis === "time"));
    }

    // -- places: instants on one axis, µs on the other

    whole() {
      const aligned = this.alignment();
      if (aligned) return { first: this.fromShared(aligned.extent[0]), last: this.fromShared(aligned.extent[1]) };
      return this.own();
    }

    /** Where this trace itself has something; linked ones may show more than that. */
    own() {
      return this.axis === "time" ? { first: 0, last: Math.max(this.times[this.times.length - 1], 1) } : { first: 0, last: this.spans.instants };
    }

    bounded(first, last) {
      const whole = this.whole();
      const least = this.axis === "time" ? Math.min(10, whole.last) : Math.min(SMALLEST_VIEW, whole.last);
      const length = clamp(last - first, least, whole.last - whole.first);
      const from = clamp(first, whole.first, whole.last - length);
      return { first: from, last: from + length };
    }

    placeOf(instant) {
      if (this.axis === "event") return instant;
      return this.times.length ? this.times[clamp(Math.ceil(instant) - 1, 0, this.times.length - 1)] : 0;
    }

    instantAt(place) {
      if (this.axis === "event") return clamp(Math.floor(place), 0, this.spans.instants - 1);
      return R.lastNotAfter(this.times, place) + 1;
    }

    middle() {
      const place = this.placeOf(this.moment);
      return place > this.view.first && place < this.view.last ? place : (this.view.first + this.view.last) / 2;
    }

    xOf(place) {
      return ((place - this.view.first) / (this.view.last - this.view.first)) * this.size.width;
    }

    xOfInstant(instant) {
      // An instant fills its column; its line stands in the middle, as far as that can be told.
      return this.axis === "event" ? this.xOf(instant + 0.5) : this.xOf(this.placeOf(instant));
    }

    placeAt(x) {
      return this.view.first + (x / this.size.width) * (this.view.last - this.view.first);
    }

    // -- drawing

    resize() {
      const narrow = this.root.clientWidth < 640 && !this.value?.linked;
      this.root.classList.toggle("mvt-narrow", narrow);
      const width = Math.floor(this.plot.clientWidth);
      const height = Math.floor(this.plot.clientHeight);
      this.away = !width || !height;
      if (this.total) this.schedule();
      if (this.away || !this.spans || !this.value) return;
      this.size = { width, height };
      this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
      this.redraw(true);
      this.drawOverview();
    }

    redraw(sharp = false) {
      if (!this.size || !this.spans || !this.value || this.away) return;
      this.sharp = this.sharp || sharp;
      clearTimeout(this.settle);
      this.settle = setTimeout(() => {
        this.sharp = true;
        this.schedule();
      }, SETTLE_MS);
      this.schedule();
    }

    schedule() {
      if (this.frame) return;
      this.frame = requestAnimationFrame(() => {
        this.frame = 0;
        if (this.total) return globalThis.memvizTotal(this, this.total);
        if (!this.value) return;
        const started = performance.now();
        this.drawPlot(this.sharp);
        this.sharp = false;
        this.drawOverlay();
        this.root.dataset.drawMs = (performance.now() - started).toFixed(2);
        this.root.dataset.drawn = String(Number(this.root.dataset.drawn || 0) + 1);
      });
    }

    drawPlot(sharp) {
      const scale = sharp ? Math.min(window.devicePixelRatio || 1, 2) : 1;
      const own = this.own();
      this.left = clamp(this.xOf(own.first), 0, this.size.width);
      this.wide = Math.max(clamp(this.xOf(own.last), 0, this.size.width) - this.left, 0);
      // While a gesture runs, a crowded picture is drawn in as many columns as there is time for; once it rests, in full.
      const columns = clamp(Math.round(this.wide * (sharp ? scale : this.share || 1)), 1, MOST_COLUMNS);
      const started = performance.now();
      const rows = Math.max(Math.round(this.size.height * scale), 1);
      if (!this.grid || this.image.width !== columns || this.image.height !== rows) {
        this.grid = new Int32Array(rows * columns);
        this.image = new ImageData(columns, rows);
      }
      this.raster = { first: Math.max(this.view.first, own.first), last: Math.min(this.view.last, own.last), columns, rows, top: this.top };
      this.instants = this.axis === "time" ? R.columnInstantsByTime(this.spans, this.times, this.raster) : R.columnInstants(this.spans, this.raster);
      const mode = isDark() ? "dark" : "light";
      const page = pixel(parseInt(this.colour("--mv-bg").slice(1), 16));
      const colours = { group: this.group, groups: this.groupCount, palette: this.palettes[mode], dimmed: this.palettes[`${mode}_dimmed`], page };
      const target = new Uint32Array(this.image.data.buffer);
      R.paint(this.spans, this.instants, this.raster, colours, { byGroup: this.order !== "age", lit: this.lit, grid: this.grid, pixels: target });
      this.hatch(target, columns, rows, scale);
      this.canvas.style.left = `${this.left}px`;
      this.canvas.style.width = `${this.wide}px`;
      if (this.canvas.width !== columns || this.canvas.height !== rows) Object.assign(this.canvas, { width: columns, height: rows });
      this.canvas.getContext("2d").putImageData(this.image, 0, 0);
      const possible = (MOVING_MS * columns) / (this.wide * (performance.now() - started));
      this.share = SHARES.find((share) => share <= possible) || SHARES[SHARES.length - 1];
    }

    /** Reserved and not live: thin diagonal lines between the top of the stack and the reserved line. */
    hatch(target, columns, rows, scale) {
      const line = pixel(parseInt(this.colour("--mv-hatch").slice(1), 16));
      const period = Math.round(5 * scale);
      const thick = Math.max(Math.round(scale), 1);
      for (let c = 0; c < columns; c++) {
        const upto = Math.min(Math.round((this.spans.reservedUpTo(this.instants[c]) / this.top) * rows), rows);
        const from = Math.min(Math.ceil((this.spans.live[this.instants[c]] / this.top) * rows), rows);
        for (let t = 0; t < thick; t++) {
          for (let r = from + ((((c + t - from) % period) + period) % period); r < upto; r += period) target[(rows - 1 - r) * columns + c] = line;
        }
      }
    }

    /** Tokens of the page. Asking for a style is slow, so each is asked for once per mode. */
    colour(name) {
      const key = `${isDark()}${name}`;
      this.tokens = this.tokens || {};
      if (!this.tokens[key]) {
        const text = getComputedStyle(this.root).getPropertyValue(name).trim();
        this.tokens[key] = /^#[0-9a-f]{6}$/i.test(text) ? text : "#808080";
      }
      return this.tokens[key];
    }

    columnAt(x) {
      return clamp(Math.floor(((x - this.left) / this.wide) * this.raster.columns), 0, this.raster.columns - 1);
    }

    yOf(bytes) {
      return this.size.height * (1 - bytes / this.top);
    }

    drawOverlay() {
      const { width, height } = this.size;
      const parts = [];
      const ticks = byteTicks(this.top);
      for (const { value, text } of ticks) {
        const y = this.yOf(value);
        parts.push(shape("line", { x1: 0, x2: width, y1: y, y2: y, class: "mvt-grid" }));
        parts.push(shape("text", { x: -8, y: y + 4, class: "mvt-tick mvt-left" }, text));
      }
      parts.push(...this.xTicks());
      parts.push(shape("path", { d: this.reservedPath(), class: "mvt-reserved" }));
      parts.push(...this.marks());
      parts.push(...this.pinned());
      parts.push(...this.momentParts());
      parts.push((this.second = shape("g", {})));
      this.svg.replaceChildren(...parts);
      this.drawSecond();
      this.placeWindow();
      this.drawPhases();
      this.drawLegend();
    }

    /** Nothing was recorded but the state at the end: one moment, and no course of time. */
    isStill() {
      return this.spans.instants === 1;
    }

    xTicks() {
      const { width, height } = this.size;
      if (this.isStill()) return [shape("line", { x1: 0, x2: width, y1: height, y2: height, class: "mvt-tickline" })];
      const span = this.view.last - this.view.first;
      const step = roundStep(span / Math.max(width / 150, 2), this.axis === "event" ? 1 : 0.001);
      const parts = [];
      const own = this.own();
      // An event's own column begins where it has happened; the first one stands before them all.
      const shift = this.axis === "event" ? 1 : 0;
      const last = Math.min(this.view.last, own.last - shift);
      const first = Math.ceil((Math.max(this.view.first, own.first + shift) - shift) / step);
      for (let k = first; k * step + shift <= last; k++) {
        const x = this.xOf(k * step + shift);
        const text = shift ? `${k === first ? "event " : ""}${grouped(k * step)}` : timeTick(k * step, step);
        const anchor = x < 30 ? "start" : x > width - 30 ? "end" : "middle";
        parts.push(shape("line", { x1: x, x2: x, y1: height, y2: height + 4, class: "mvt-tickline" }));
        parts.push(shape("text", { x, y: height + 17, class: "mvt-tick", "text-anchor": anchor }, text));
      }
      parts.push(shape("line", { x1: 0, x2: width, y1: height, y2: height, class: "mvt-tickline" }));
      return parts;
    }

    reservedPath() {
      if (!this.wide) return "";
      const scale = this.wide / this.instants.length;
      let path = "";
      let before = null;
      for (let c = 0; c < this.instants.length; c++) {
        const y = this.yOf(this.spans.reservedUpTo(this.instants[c])).toFixed(1);
        if (y !== before) path += before === null ? `M${this.left},${y}` : `H${(this.left + c * scale).toFixed(1)}V${y}`;
        before = y;
      }
      return `${path}H${this.left + this.wide}`;
    }

    marks() {
      const { width, height } = this.size;
      const parts = [];
      const { peak, live } = this.spans;
      const peakY = this.yOf(live[peak]);
      // Both are peaks of the whole trace, wherever the view ends.
      const most = this.reservedPeak();
      for (const [instant, y] of [[peak, peakY], [most.instant, this.yOf(most.bytes)]]) {
        parts.push(shape("line", { x1: clamp(this.xOfInstant(instant), 0, width), x2: width, y1: y, y2: y, class: "mvt-peakline" }));
      }
      // Of a state alone nothing is known to be a peak.
      const known = this.isStill() ? "" : ", peak";
      const labels = [[this.yOf(most.bytes), bytesText(most.bytes), `reserved${known}`], [peakY, bytesText(live[peak]), `live${known}`]];
      const { ruler } = this.value;
      if (ruler) {
        const y = this.yOf(ruler.bytes);
        parts.push(shape("line", { x1: 0, x2: width, y1: y, y2: y, class: "mvt-ruler" }));
        parts.push(shape("line", { x1: width, x2: width + 20, y1: y, y2: y, class: "mvt-ruler mvt-ruler-on" }));
        // In the baseline itself its own peak says the same.
        if (ruler.bytes !== live[peak]) labels.push([y, "", ruler.text]);
      }
      for (const [y, figure, words] of spread(labels, height)) {
        parts.push(shape("text", { x: width + 8, y: y + 1, class: "mvt-figure mvt-right" }, figure));
        parts.push(shape("text", { x: width + 8, y: y + (figure ? 15 : 4), class: "mvt-tick mvt-right" }, words));
      }
      for (const oom of this.value.ooms || []) {
        const x = this.xOfInstant(oom.event + 1);
        if (x < -8 || x > width + 8) continue;
        const y = clamp(this.yOf(oom.reserved), 10, height - 10);
        parts.push(shape("line", { x1: x, x2: x, y1: y, y2: height, class: "mvt-oomline" }));
        parts.push(shape("circle", { cx: x, cy: y, r: 8, class: "mvt-oom" }));
        parts.push(shape("path", { d: `M${x - 3},${y - 3}l6,6m0,-6l-6,6`, class: "mvt-oom" }));
        const end = x > width / 2;
        // Beside the line of what is reserved, never on it.
        const beside = y >= 16 ? y - 6 : y + 17;
        parts.push(shape("text", { x: x + (end ? -13 : 13), y: beside, class: "mvt-oomtext", "text-anchor": end ? "end" : "start" }, oom.text));
      }
      const peakX = this.xOfInstant(peak);
      if (peakX >= 0 && peakX <= width) parts.push(shape("path", { d: `M${peakX - 5},${peakY - 9}h10l-5,7z`, class: "mvt-peak" }));
      return parts;
    }

    reservedPeak() {
      const { reserved, reservedAt } = this.spans;
      let row = 0;
      for (let i = 1; i < reserved.length; i++) if (reserved[i] > reserved[row]) row = i;
      return { bytes: reserved[row] || 0, instant: reservedAt[row] || 0 };
    }

    momentParts() {
      const { width, height } = this.size;
      const parts = [];
      if (this.range) {
        const [a, b] = [this.xOfInstant(this.range[0]), this.xOfInstant(this.range[1])];
        parts.push(shape("rect", { x: -1, y: 0, width: Math.max(a + 1, 0), height, class: "mvt-outside" }));
        parts.push(shape("rect", { x: Math.max(b, 0), y: 0, width: Math.max(width - b, 0), height, class: "mvt-outside" }));
        for (const x of [a, b]) parts.push(shape("line", { x1: x, x2: x, y1: 0, y2: height, class: "mvt-moment" }));
      }
      const x = this.xOfInstant(this.moment);
      // In a row of several the peak has its mark already; a moment is drawn once somebody has chosen another.
      if (x < 0 || x > width || (this.value.linked && this.moment === this.spans.peak)) return parts;
      const words = this.momentWords();
      const wide = words.length * 6.1 + 18;
      const left = clamp(x - wide / 2, -40, width - wide + 40);
      parts.push(shape("line", { x1: x, x2: x, y1: 0, y2: height, class: "mvt-moment" }));
      parts.push(shape("circle", { cx: x, cy: this.yOf(this.spans.live[this.moment]), r: 4, class: "mvt-dot" }));
      parts.push(shape("rect", { x: left, y: height + 3, width: wide, height: 19, rx: 4, class: "mvt-pill" }));
      parts.push(shape("text", { x: left + wide / 2, y: height + 17, class: "mvt-pilltext", "text-anchor": "middle" }, words));
      return parts;
    }

    momentWords() {
      const event = this.moment - 1;
      if (this.isStill()) return "at the end";
      const when = event < 0 ? "before the first event" : `event ${grouped(event)}`;
      return this.moment === this.spans.peak ? `peak · ${when}` : when;
    }

    /** The pinned allocation's outline, from the columns where it can be seen. */
    pinned() {
      if (this.pin < 0) return [];
      const { columns, rows } = this.raster;
      const [sx, sy] = [this.wide / columns, this.size.height / rows];
      let upper = "";
      let lower = "";
      const pieces = [];
      const close = () => {
        if (upper) pieces.push(`M${upper.slice(1)}${lower}Z`);
        upper = lower = "";
      };
      for (let c = 0; c < columns; c++) {
        let low = -1;
        let high = -1;
        if (this.spans.start[this.pin] <= this.instants[c] && this.instants[c] < this.spans.end[this.pin]) {
          for (let r = 0; r < rows; r++) {
            if (this.grid[r * columns + c] === this.pin) {
              if (low < 0) low = r;
              high = r + 1;
            } else if (low >= 0) break;
          }
        }
        if (low < 0) {
          close();
          continue;
        }
        const [x0, x1] = [(this.left + c * sx).toFixed(1), (this.left + (c + 1) * sx).toFixed(1)];
        const [y0, y1] = [((rows - high) * sy).toFixed(1), ((rows - low) * sy).toFixed(1)];
        upper += `L${x0},${y0}L${x1},${y0}`;
        lower = `L${x1},${y1}L${x0},${y1}${lower}`;
      }
      close();
      const d = pieces.join("");
      return d ? [shape("path", { d, class: "mvt-halo" }), shape("path", { d, class: "mvt-outline" })] : [];
    }

    drawPhases() {
      const list = this.value.phases || [];
      // Beside one that has phases, an empty band keeps the byte axes level.
      this.phases.hidden = !list.length && !this.value.band;
      const { width } = this.size;
      const parts = [];
      for (const [name, first, last] of list) {
        const [a, b] = [this.xOf(this.placeOf(first)), this.xOf(this.placeOf(last))];
        if (b < 0 || a > width || b - a < 2) continue;
        const [left, right] = [Math.max(a, 0), Math.min(b, width)];
        const node = el("span", { class: "mvt-phase", title: name, style: `left:${left}px;width:${right - left - 1}px` }, phaseLabel(name, right - left));
        parts.push(node);
        if (parts.length > 400) break;
      }
      this.phases.replaceChildren(...parts);
    }

    drawLegend() {
      if (this.value.plain) return;
      const key = `${this.moment}|${this.meaning}|${isDark()}|${this.litGroup}|${this.value.key}|${this.size.width}`;
      if (key === this.legendKey || this.value.plain) return;
      this.legendKey = key;
      const sums = new Float64Array(this.groupCount);
      for (const row of this.spans.stackAt(this.moment, this.group, this.groupCount, true)) sums[this.group[row]] += this.spans.size[row];
      const total = this.spans.live[this.moment];
      const colours = this.groupColours[isDark() ? "dark" : "light"];
      const items = [];
      let folded = 0;
      this.groupLabels.forEach((label, g) => {
        if (!sums[g]) return;
        if (sums[g] < total * FOLD_SHARE) folded += sums[g];
        else items.push({ g, label, bytes: sums[g] });
      });
      this.legend.replaceChildren();
      const room = this.legend.clientWidth;
      const shown = [];
      for (const item of items) {
        const node = el("button", {
          type: "button", class: "mvt-key", role: "listitem", "aria-pressed": String(this.litGroup === item.g), title: `${item.label}: ${grouped(item.bytes)} B`,
          onclick: () => this.toggleGroup(item.g), onmouseenter: () => this.lightGroup(item.g), onmouseleave: () => this.lightGroup(this.litGroup ?? null),
        }, el("i", { style: `background:${colours[item.g]}` }), `${item.label} `, el("b", {}, bytesText(item.bytes)));
        this.legend.append(node);
        shown.push([node, item]);
      }
      // It never wraps: what does not fit is folded first, smallest first.
      const bySize = [...shown].sort((a, b) => a[1].bytes - b[1].bytes);
      const rest = el("span", { class: "mvt-key mvt-rest" });
      const tell = () => {
        rest.textContent = folded ? `other ${bytesText(folded)}` : "";
        if (folded) this.legend.append(rest);
      };
      tell();
      while (this.legend.scrollWidth > room && bySize.length > 1) {
        const [node, item] = bySize.shift();
        node.remove();
        folded += item.bytes;
        tell();
      }
    }

    lightGroup(g) {
      if (g === null || g === undefined) this.lit = this.litFixed || null;
      else {
        const mask = new Uint8Array(this.spans.count);
        for (let i = 0; i < mask.length; i++) mask[i] = this.group[i] === g ? 1 : 0;
        this.lit = mask;
      }
      this.redraw();
    }

    toggleGroup(g) {
      this.litGroup = this.litGroup === g ? undefined : g;
      this.lightGroup(this.litGroup ?? null);
    }

    // -- overview

    drawOverview() {
      if (!this.value || this.value.plain) return;
      const width = this.overview.clientWidth;
      if (!width) return;
      this.overviewBox = { left: this.overview.offsetLeft, width };
      const scale = Math.min(window.devicePixelRatio || 1, 2);
      this.overview.width = width * scale;
      this.overview.height = OVERVIEW * scale;
      const pen = this.overview.getContext("2d");
      pen.scale(scale, scale);
      const whole = this.whole();
      const view = { ...whole, columns: width, rows: 1, top: 1 };
      const instants = this.axis === "time" ? R.columnInstantsByTime(this.spans, this.times, view) : R.columnInstants(this.spans, view);
      const most = Math.max(this.spans.live[this.spans.peak], 1);
      pen.fillStyle = this.colour("--mv-ink-3");
      for (let c = 0; c < width; c++) {
        const high = (this.spans.live[instants[c]] / most) * (OVERVIEW - 6);
        pen.fillRect(c, OVERVIEW - high, 1, high);
      }
      this.placeWindow();
    }

    placeWindow() {
      if (!this.overviewBox) return;
      const whole = this.whole();
      const length = whole.last - whole.first || 1;
      // Asked of the page here, it would lay out all that this frame has drawn, twice a frame.
      const { left: begin, width } = this.overviewBox;
      const left = ((this.view.first - whole.first) / length) * width;
      const right = ((this.view.last - whole.first) / length) * width;
      this.window.style.left = `${begin + left}px`;
      this.window.style.width = `${Math.max(right - left, 6)}px`;
    }

    // -- taking it away

    /** The plot as it stands, with its axes and labels, as an SVG that needs nothing else. */
    svgText() {
      const { width, height } = this.size;
      const [left, right, upper, lower] = [60, 110, 12, 30];
      const copy = this.svg.cloneNode(true);
      const looks = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "stroke-linejoin", "font-size", "font-weight", "text-anchor", "paint-order"];
      const [from, to] = [this.svg.querySelectorAll("*"), copy.querySelectorAll("*")];
      from.forEach((node, i) => {
        const style = getComputedStyle(node);
        for (const name of looks) to[i].setAttribute(name, style.getPropertyValue(name));
        to[i].removeAttribute("class");
      });
      const size = { x: -left, y: -upper, width: width + left + right, height: height + upper + lower };
      const image = shape("image", { href: this.canvas.toDataURL("image/png"), x: this.left, width: this.wide, height, preserveAspectRatio: "none" });
      const ground = shape("rect", { ...size, fill: this.colour("--mv-bg") });
      copy.prepend(ground, image);
      copy.setAttribute("xmlns", SVG);
      copy.setAttribute("viewBox", `${-left} ${-upper} ${size.width} ${size.height}`);
      copy.setAttribute("width", size.width);
      copy.setAttribute("height", size.height);
      copy.setAttribute("font-family", "IBM Plex Sans, Helvetica, Arial, sans-serif");
      copy.removeAttribute("class");
      return { text: new XMLSerializer().serializeToString(copy), width: size.width, height: size.height };
    }

    async save(kind) {
      this.drawPlot(true);
      const { text, width, height } = this.svgText();
      let file = new Blob([text], { type: "image/svg+xml" });
      if (kind === "png") {
        const picture = new Image();
        picture.src = URL.createObjectURL(file);
        await picture.decode();
        const canvas = el("canvas", { width: 2 * width, height: 2 * height });
        canvas.getContext("2d").drawImage(picture, 0, 0, 2 * width, 2 * height);
        URL.revokeObjectURL(picture.src);
        file = await new Promise((done) => canvas.toBlob(done, "image/png"));
      }
      const link = el("a", { href: URL.createObjectURL(file), download: `memory-timeline${this.value.badge ? `-${this.value.badge}` : ""}.${kind}` });
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    }

    // -- what people do

    listen() {
      new ResizeObserver(() => this.resize()).observe(this.plot);
      new MutationObserver(() => { this.legendKey = ""; this.redraw(true); if (this.spans) this.drawOverview(); }).observe(document.body, { attributes: true, attributeFilter: ["class"] });
      this.plot.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
      this.plot.addEventListener("pointerdown", (event) => this.press(event));
      this.plot.addEventListener("pointermove", (event) => this.hover(event));
      this.plot.addEventListener("pointerleave", () => this.leave());
      this.plot.addEventListener("dblclick", () => this.showAll(true));
      this.plot.addEventListener("keydown", (event) => this.key(event));
      this.overviewRow.addEventListener("pointerdown", (event) => this.pressOverview(event));
      window.addEventListener("memviz:export", ({ detail }) => this.value && this.host.offsetParent && this.save(detail.kind));
      window.addEventListener("memviz:light", ({ detail }) => this.value && !this.value.linked && this.root.isConnected && this.showLit(detail));
      window.addEventListener("memviz:lit", ({ detail }) => this.value && this.value.linked && detail.linked === this.value.linked && this.showMask(detail.masks && detail.masks[this.value.key]));
      window.addEventListener("memviz:ruler", ({ detail }) => {
        if (!this.value || !this.value.linked || detail.linked !== this.value.linked) return;
        this.secondBytes = detail.bytes;
        this.drawSecond();
      });
      window.addEventListener("memviz:go", ({ detail }) => this.value && !this.value.linked && this.go(detail));
      window.addEventListener("memviz:view", ({ detail }) => {
        if (!this.value || detail.from === this.id || !this.value.linked || detail.linked !== this.value.linked) return;
        if (detail.axis !== this.axis || !this.spans) return;
        this.view = this.bounded(this.fromShared(detail.first), this.fromShared(detail.last));
        this.redraw();
      });
    }

    setView(first, last) {
      this.view = this.bounded(first, last);
      this.hideTip();
      this.redraw();
      if (this.value.linked) {
        const detail = { from: this.id, linked: this.value.linked, axis: this.axis, first: this.toShared(this.view.first), last: this.toShared(this.view.last) };
        window.dispatchEvent(new CustomEvent("memviz:view", { detail }));
      }
      this.say();
    }

    zoomAbout(place, factor, slow = false) {
      const { first, last } = this.view;
      this.glide(place - (place - first) * factor, place + (last - place) * factor, slow);
    }

    showAll(slow) {
      const whole = this.whole();
      this.glide(whole.first, whole.last, slow);
    }

    /** Buttons and keys move the view in 160 ms; wheel and drag at once. */
    glide(first, last, slow) {
      cancelAnimationFrame(this.gliding);
      if (!slow || matchMedia("(prefers-reduced-motion: reduce)").matches) return this.setView(first, last);
      const from = { ...this.view };
      const goal = this.bounded(first, last);
      const begin = performance.now();
      const step = (now) => {
        const t = clamp((now - begin) / 160, 0, 1);
        const eased = 1 - (1 - t) ** 3;
        this.setView(from.first + (goal.first - from.first) * eased, from.last + (goal.last - from.last) * eased);
        if (t < 1) this.gliding = requestAnimationFrame(step);
      };
      this.gliding = requestAnimationFrame(step);
    }

    wheel(event) {
      if (!this.spans) return;
      const whole = this.whole();
      const all = this.view.first <= whole.first && this.view.last >= whole.last;
      const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY);
      // Outward when all is shown lets the page scroll, so that the plot is no trap.
      if (all && (sideways || event.deltaY > 0)) return;
      event.preventDefault();
      if (sideways) {
        const step = (event.deltaX / this.size.width) * (this.view.last - this.view.first);
        return this.setView(this.view.first + step, this.view.last + step);
      }
      const factor = Math.exp(clamp(event.deltaY * (event.deltaMode ? 24 : 1), -400, 400) / 500);
      this.zoomAbout(this.placeAt(this.local(event).x), factor);
    }

    local(event) {
      const box = this.plot.getBoundingClientRect();
      return { x: event.clientX - box.left, y: event.clientY - box.top };
    }

    press(event) {
      if (!this.spans || event.button) return;
      this.plot.focus({ preventScroll: true });
      const start = this.local(event);
      this.fingers = this.fingers || new Map();
      this.fingers.set(event.pointerId, start);
      if (this.fingers.size === 2) return;
      const from = { ...this.view };
      const begin = this.instantAt(this.placeAt(start.x));
      let moved = false;
      this.plot.setPointerCapture(event.pointerId);
      const move = (next) => {
        const here = this.local(next);
        if (this.fingers.size === 2) return this.pinch(next.pointerId, here);
        moved = moved || Math.hypot(here.x - start.x, here.y - start.y) > 3;
        if (!moved) return;
        this.dragging = true;
        this.hideTip();
        if (event.shiftKey) {
          const end = this.instantAt(this.placeAt(here.x));
          this.range = [Math.min(begin, end), Math.max(begin, end)];
          this.redraw();
        } else {
          const step = ((start.x - here.x) / this.size.width) * (from.last - from.first);
          this.setView(from.first + step, from.last + step);
        }
      };
      const done = (next) => {
        this.fingers.delete(next.pointerId);
        this.plot.removeEventListener("pointermove", move);
        this.plot.removeEventListener("pointerup", done);
        this.plot.removeEventListener("pointercancel", done);
        this.dragging = false;
        if (next.type === "pointercancel") return;
        if (!moved) this.click(start);
        else if (event.shiftKey) this.say();
      };
      this.plot.addEventListener("pointermove", move);
      this.plot.addEventListener("pointerup", done);
      this.plot.addEventListener("pointercancel", done);
    }

    pinch(id, here) {
      const other = [...this.fingers].find(([each]) => each !== id)[1];
      const before = this.fingers.get(id);
      const [was, is] = [Math.abs(before.x - other.x), Math.abs(here.x - other.x)];
      this.fingers.set(id, here);
      if (was > 4 && is > 4) this.zoomAbout(this.placeAt((other.x + here.x) / 2), was / is);
    }

    /** On an allocation: pin it. On free ground above the stack, or on the axis: choose that moment. */
    click(at) {
      const row = this.rowAt(at);
      const column = this.columnAt(at.x);
      if (row < 0) this.setMoment(this.instants[column]);
      else {
        this.pin = this.pin === row ? -1 : row;
        this.redraw();
        this.say();
      }
    }

    setMoment(instant) {
      this.moment = clamp(instant, 0, this.spans.instants - 1);
      this.range = null;
      this.stackPlace = -1;
      this.redraw();
      this.say();
    }

    rowAt({ x, y }) {
      const { columns, rows } = this.raster;
      const c = Math.floor(((x - this.left) / this.wide) * columns);
      const r = Math.floor((1 - y / this.size.height) * rows);
      if (!(c >= 0) || c >= columns || r < 0 || r >= rows) return -1;
      return this.grid[r * columns + c];
    }

    async hover(event) {
      if (!this.spans || !this.raster || this.dragging || event.pointerType === "touch") return;
      const at = this.local(event);
      const row = this.rowAt(at);
      this.tellRuler(clamp(this.top * (1 - at.y / this.size.height), 0, this.top));
      if (row < 0) return this.hideTip();
      this.tipAt = at;
      this.showTip(at, this.tipLines(at, row));
    }

    tipLines(at, row) {
      const { spans } = this;
      const perPixel = this.top / this.raster.rows;
      if (spans.size[row] < perPixel) {
        const [count, bytes] = this.insidePixel(at, perPixel);
        if (count > 1) return [[`${grouped(count)} allocations, ${bytesText(bytes)} together`], ["zoom in to tell them apart"]];
      }
      const begin = spans.start[row] === 0 ? "before the first event" : `event ${grouped(spans.start[row] - 1)}`;
      const end = spans.end[row] >= spans.instants ? "the end" : grouped(spans.end[row] - 1);
      return [[bytesText(spans.size[row]), this.siteOf(row)], [this.groupLabels[this.group[row]]], [`${begin} → ${end}`]];
    }

    insidePixel(at, perPixel) {
      const column = this.columnAt(at.x);
      const low = Math.floor((1 - at.y / this.size.height) * this.raster.rows) * perPixel;
      let [sum, count, bytes] = [0, 0, 0];
      for (const row of this.spans.stackAt(this.instants[column], this.group, this.groupCount, this.order !== "age")) {
        const upper = sum + this.spans.size[row];
        if (upper > low && sum < low + perPixel) {
          count++;
          bytes += this.spans.size[row];
        }
        sum = upper;
        if (sum >= low + perPixel) break;
      }
      return [count, bytes];
    }

    /** Sites come once, when somebody first points at something. */
    siteOf(row) {
      if (this.sites) return this.sites.labels[this.sites.code[row]] || "";
      if (!this.sitesAsked || this.sitesAsked !== this.value.key) {
        const key = (this.sitesAsked = this.value.key);
        piece(this.server, { key, piece: "sites" }).then(({ header, columns }) => {
          if (!this.value || this.value.key !== key) return;
          this.sites = { labels: header.labels, code: columns.site };
          if (!this.tip.hidden && this.tipAt) {
            const under = this.rowAt(this.tipAt);
            if (under >= 0) this.showTip(this.tipAt, this.tipLines(this.tipAt, under));
          }
        });
      }
      return "";
    }

    showTip(at, lines) {
      this.tip.replaceChildren(...lines.map(([strong, soft], i) => el("div", {}, i ? strong : el("b", {}, strong), soft ? ` ${soft}` : "")));
      this.tip.hidden = false;
      const { width, height } = this.size;
      const [w, h] = [this.tip.offsetWidth, this.tip.offsetHeight];
      this.tip.style.left = `${at.x + 14 + w > width ? Math.max(at.x - 14 - w, 0) : at.x + 14}px`;
      this.tip.style.top = `${at.y + 14 + h > height ? Math.max(at.y - 14 - h, 0) : at.y + 14}px`;
    }

    leave() {
      this.hideTip();
      this.tellRuler(null);
    }

    /** Under the pointer, in all that are linked: how many bytes this height is. */
    tellRuler(bytes) {
      if (this.value && this.value.linked) window.dispatchEvent(new CustomEvent("memviz:ruler", { detail: { bytes, linked: this.value.linked } }));
    }

    drawSecond() {
      if (!this.second) return;
      if (!Number.isFinite(this.secondBytes)) return this.second.replaceChildren();
      const { width } = this.size;
      const y = this.yOf(this.secondBytes);
      this.second.replaceChildren(
        shape("line", { x1: 0, x2: width, y1: y, y2: y, class: "mvt-second" }),
        shape("text", { x: width - 4, y: y > 16 ? y - 5 : y + 14, class: "mvt-secondtext" }, bytesText(this.secondBytes)),
      );
    }

    hideTip() {
      this.tip.hidden = true;
    }

    pressOverview(event) {
      if (!this.spans) return;
      event.preventDefault();
      const box = this.overview.getBoundingClientRect();
      const whole = this.whole();
      const length = whole.last - whole.first;
      const place = (each) => whole.first + clamp((each.clientX - box.left) / box.width, 0, 1) * length;
      const start = place(event);
      const { first, last } = this.view;
      const near = (8 / box.width) * length;
      const edge = Math.abs(start - first) < near ? "first" : Math.abs(start - last) < near ? "last" : null;
      const inside = start > first && start < last && last - first < length * 0.999;
      if (!edge && !inside) this.setView(start - (last - first) / 2, start + (last - first) / 2);
      const from = { ...this.view };
      const move = (next) => {
        const here = place(next);
        if (edge === "first") this.setView(Math.min(here, last), last);
        else if (edge === "last") this.setView(first, Math.max(here, first));
        else this.setView(from.first + here - start, from.last + here - start);
      };
      const done = () => {
        window.removeEventListener("pointermove", move);
        window.removeEventListener("pointerup", done);
      };
      window.addEventListener("pointermove", move);
      window.addEventListener("pointerup", done);
    }

    key(event) {
      if (!this.spans || event.ctrlKey || event.metaKey || event.altKey) return;
      const span = this.view.last - this.view.first;
      const pan = (share) => this.setView(this.view.first + span * share, this.view.last + span * share);
      const acts = {
        ArrowLeft: () => (event.shiftKey ? this.setMoment(this.moment - 1) : pan(-0.1)),
        ArrowRight: () => (event.shiftKey ? this.setMoment(this.moment + 1) : pan(0.1)),
        ArrowUp: () => this.walk(1),
        ArrowDown: () => this.walk(-1),
        Home: () => pan(-1e9),
        End: () => pan(1e9),
        PageUp: () => this.nextPhase(-1),
        PageDown: () => this.nextPhase(1),
        "+": () => this.zoomAbout(this.middle(), 1 / 1.6, true),
        "=": () => this.zoomAbout(this.middle(), 1 / 1.6, true),
        "-": () => this.zoomAbout(this.middle(), 1.6, true),
        0: () => this.showAll(true),
        f: () => this.fit(),
        p: () => this.toPeak(),
        t: () => !this.value.linked && this.setAxis(this.axis === "event" ? "time" : "event"),
        "[": () => this.mark(0),
        "]": () => this.mark(1),
        Enter: () => this.pinWalked(),
        Escape: () => this.undo(),
      };
      const act = acts[event.key.length === 1 ? event.key.toLowerCase() : event.key];
      if (!act) return;
      event.preventDefault();
      act();
    }

    /** Where another part of the page points: an event, an allocation, a span of events. */
    go({ at, pin, from, to }) {
      if (Number.isFinite(pin)) this.pin = this.pin === pin ? -1 : clamp(pin, -1, this.spans.count - 1);
      if (Number.isFinite(from) && Number.isFinite(to)) this.glide(this.placeOf(from + 1), this.placeOf(to + 2), true);
      if (Number.isFinite(at)) this.reveal(clamp(at + 1, 0, this.spans.instants - 1));
      else this.redraw();
      this.say();
    }

    reveal(instant) {
      const place = this.placeOf(instant);
      if (place < this.view.first || place > this.view.last) {
        const half = (this.view.last - this.view.first) / 2;
        this.glide(place - half, place + half, true);
      }
      this.setMoment(instant);
    }

    toPeak() {
      this.reveal(this.spans.peak);
    }

    fit() {
      if (this.range) return this.glide(this.placeOf(this.range[0]), this.placeOf(this.range[1]), true);
      if (this.pin < 0) return;
      const [a, b] = [this.placeOf(this.spans.start[this.pin]), this.placeOf(Math.min(this.spans.end[this.pin], this.spans.instants))];
      this.glide(a - (b - a) * 0.1, b + (b - a) * 0.1, true);
    }

    mark(side) {
      const range = this.range || [0, this.spans.instants - 1];
      range[side] = this.moment;
      this.range = [Math.min(...range), Math.max(...range)];
      this.redraw();
      this.say();
    }

    nextPhase(step) {
      const begins = [...new Set((this.value.phases || []).map(([, first]) => first))].sort((a, b) => a - b);
      const next = step > 0 ? begins.find((each) => each > this.moment) : begins.reverse().find((each) => each < this.moment);
      if (next !== undefined) this.setMoment(next);
    }

    walk(step) {
      const stack = [...this.spans.stackAt(this.moment, this.group, this.groupCount, this.order !== "age")];
      if (!stack.length) return;
      const at = this.stackPlace < 0 ? stack.indexOf(this.pin) : this.stackPlace;
      this.stackPlace = clamp(at + step, 0, stack.length - 1);
      this.walked = stack[this.stackPlace];
      const words = this.tipLinesOf(this.walked);
      this.live.textContent = words;
      this.showTip({ x: clamp(this.xOfInstant(this.moment), 0, this.size.width), y: 10 }, [[words]]);
    }

    tipLinesOf(row) {
      return `${bytesText(this.spans.size[row])} ${this.siteOf(row)}, ${this.groupLabels[this.group[row]]}`;
    }

    pinWalked() {
      if (this.walked === undefined) return;
      this.pin = this.pin === this.walked ? -1 : this.walked;
      this.redraw();
      this.say();
    }

    /** One thing at a time. */
    undo() {
      if (!this.tip.hidden) this.hideTip();
      else if (this.pin >= 0) this.pin = -1;
      else if (this.range) this.range = null;
      else if (this.lit) {
        this.litGroup = undefined;
        this.lit = null;
      } else return;
      this.redraw();
      this.say();
    }

    /** Tells the page what is chosen, once it rests. */
    say() {
      clearTimeout(this.telling);
      this.telling = setTimeout(() => {
        if (!this.value || !this.spans) return;
        const first = this.instantAt(this.view.first);
        const last = this.instantAt(this.view.last);
        const state = {
          key: this.value.key,
          at: this.moment - 1,
          pin: this.pin,
          range: this.range ? [this.range[0] - 1, this.range[1] - 1] : null,
          from: first - 1,
          to: last - 1,
          order: this.order,
          colour: this.meaning,
          axis: this.axis,
        };
        this.live.textContent = `${this.momentWords()}, ${bytesText(this.spans.live[this.moment])} live`;
        // The address follows the one timeline that is explored.
        if (!this.value.linked) window.dispatchEvent(new CustomEvent("memviz:state", { detail: state }));
        const chosen = JSON.stringify([state.at, state.pin, state.range]);
        if (chosen !== this.told) {
          this.told = chosen;
          this.tell(state);
        }
      }, TELL_MS);
    }
  }

  const mounted = new Set();
  /** Those with this name, in the order of their badges. */
  const linked = (name) =>
    [...mounted].filter((each) => each.root.isConnected && each.value && each.value.linked === name && each.spans).sort((a, b) => (a.value.badge < b.value.badge ? -1 : 1));

  function mount(element, { props, trigger, watch, server }) {
    const timeline = new MemoryTimeline(element, { server, tell: (state) => trigger("select", state) });
    mounted.add(timeline);
    element.memvizTimeline = timeline;
    watch("value", () => timeline.load(props.value));
    timeline.load(props.value);
  }

  globalThis.memvizTimeline = { mount, mounted, linked, give, piece, MemoryTimeline, el, shape, clamp, isDark, spread };
})();
