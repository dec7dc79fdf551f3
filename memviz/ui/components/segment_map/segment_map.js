// The allocator's map at one moment: canvas, slider, tooltip, keys, figures and table. Geometry is in layout.js.
// README.md beside this file says what comes in and what goes out.
(() => {
  "use strict";
  const R = globalThis.memvizRaster;
  const L = globalThis.memvizSegmentLayout;
  const { grouped, bytesText, durationText } = globalThis.memvizWords;
  const [FREE, LIVE, WAITING] = [0, 1, 2];
  const SHADES = 5;
  const EDGES = 3;
  const HASH = 0x9e3779b1;
  const HEAD = 22;
  const TALL = 24;
  const ROOM = 560;
  const LABEL_ROOM = 72;
  const MOST_LABELS = 300;
  const ECHO_MS = 3000;
  let made = 0;

  // -- small helpers ----------------------------------------------------------------------------------

  const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
  const isDark = () => document.body.classList.contains("dark");
  /** 0xRRGGBB as a little-endian pixel, and back. */
  const pixel = (rgb) => (0xff000000 | ((rgb & 0xff) << 16) | (rgb & 0xff00) | (rgb >> 16)) >>> 0;
  const parts = (px) => [px & 0xff, (px >> 8) & 0xff, (px >> 16) & 0xff];

  function mixed(px, other, share) {
    const [a, b] = [parts(px), parts(other)];
    const [red, green, blue] = a.map((each, i) => Math.round(each + (b[i] - each) * share));
    return (0xff000000 | (blue << 16) | (green << 8) | red) >>> 0;
  }

  /** Of a few colours, for very many pixels. */
  function faded(px, look) {
    if (!look.faded.has(px)) look.faded.set(px, mixed(px, look.page, 0.7));
    return look.faded.get(px);
  }

  /** Ink or white, whichever can be read on this fill. */
  function textOn(px) {
    const [red, green, blue] = parts(px).map((each) => (each / 255 <= 0.04045 ? each / 255 / 12.92 : ((each / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.19 ? "#131316" : "#ffffff";
  }

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

  const eventWords = (event) => (event < 0 ? "before the first event" : `event ${grouped(event)}`);

  /** The server's columns as what drawing asks for. */
  async function read({ header, body }) {
    const text = atob(body);
    const raw = new Uint8Array(text.length);
    for (let i = 0; i < raw.length; i++) raw[i] = text.charCodeAt(i);
    const c = await R.unpack(header, raw);
    const sizes = R.wide(c.segment_size_low, c.segment_size_high);
    const size = R.wide(c.size_low, c.size_high);
    const first = new Int32Array(sizes.length + 1);
    const segment = new Int32Array(size.length);
    const offset = new Float64Array(size.length);
    for (let s = 0, t = 0; s < sizes.length; s++) {
      for (let at = 0, upto = t + c.segment_tiles[s]; t < upto; t++) {
        segment[t] = s;
        offset[t] = at;
        at += size[t];
      }
      first[s + 1] = t;
    }
    const tiles = {
      first, segment, offset, size,
      requested: R.wide(c.requested_low, c.requested_high),
      kind: c.kind, row: c.row, group: c.group, start: c.start, site: c.site,
      age: c.age_low ? R.wide(c.age_low, c.age_high) : null,
    };
    const segments = { size: sizes, group: c.segment_group, flags: c.segment_flags, low: c.segment_address_low, high: c.segment_address_high };
    return { header, segments, tiles };
  }

  // -- the component ----------------------------------------------------------------------------------

  class SegmentMap {
    constructor(host, { server }) {
      this.id = ++made;
      this.host = host;
      this.server = server;
      this.key = null;
      this.pin = -1;
      this.by = "size";
      this.cursor = -1;
      this.build();
      this.listen();
    }

    build() {
      const button = (text, label, act) => el("button", { type: "button", class: "mvt-button", "aria-label": label, title: label, onclick: act }, text);
      this.title = el("span", { class: "mvs-title" });
      this.note = el("span", { class: "mvs-note" });
      this.bySize = el("button", { type: "button", onclick: () => this.orderBy("size") }, "By size");
      this.byAddress = el("button", { type: "button", onclick: () => this.orderBy("address") }, "By address");
      this.rowText = el("span", { class: "mvs-row-text" });
      this.shorter = button("+", "Shorter rows: more detail", () => this.stretchRows(1 / 2));
      this.longer = button("−", "Longer rows: less detail", () => this.stretchRows(2));
      this.slider = el("input", { type: "range", class: "mvs-slider", "aria-label": "Moment", min: "-1", max: "0", step: "1" });
      this.canvas = el("canvas", { class: "mvs-canvas", "aria-hidden": "true" });
      this.heads = el("div", { class: "mvs-heads" });
      this.marks = el("div", { class: "mvs-marks", "aria-hidden": "true" });
      this.tip = el("div", { class: "mvt-tip", role: "tooltip", hidden: "" });
      this.plot = el("div", { class: "mvs-plot", tabindex: "0", role: "application", "aria-describedby": `mvs-keys-${this.id}` }, this.canvas, this.marks, this.heads, this.tip);
      this.help = el("div", { class: "mvt-hidden", id: `mvs-keys-${this.id}` },
        "Left and right walk the blocks, up and down change the row, Enter pins, Escape undoes. The table below says the same.");
      this.live = el("div", { class: "mvt-hidden", "aria-live": "polite" });
      this.figures = el("div", { class: "mvs-figures" });
      this.table = el("div", { class: "mvs-table" });
      this.details = el("details", { class: "mvs-details" }, el("summary", {}, "As a table"), this.table);
      this.root = el("div", { class: "mvs", hidden: "" },
        el("div", { class: "mvs-bar" },
          el("div", { class: "mvs-words" }, this.title, this.note),
          el("div", { class: "mvs-controls" }, el("span", { class: "mvs-rows" }, this.rowText, this.longer, this.shorter),
            el("div", { class: "mvt-switch", role: "group", "aria-label": "Order of the segments" }, this.bySize, this.byAddress))),
        this.slider, this.plot, this.help, this.live, this.figures, this.details);
      this.showOrder();
    }

    /** Gradio redraws the host's template when the value changes; what we built is put back into it. */
    attach() {
      const place = this.host.querySelector(".mvs-place") || this.host;
      if (this.root.parentNode !== place) place.append(this.root);
    }

    listen() {
      new ResizeObserver(() => this.resized()).observe(this.root);
      new MutationObserver(() => this.draw()).observe(document.body, { attributes: true, attributeFilter: ["class"] });
      window.addEventListener("memviz:state", ({ detail }) => detail.key === this.key && this.follow(detail));
      this.slider.addEventListener("input", () => this.scrub(Number(this.slider.value)));
      this.details.addEventListener("toggle", () => this.details.open && this.ask());
      this.plot.addEventListener("pointermove", (event) => this.hover(event));
      this.plot.addEventListener("pointerleave", () => this.point(-1));
      this.plot.addEventListener("click", (event) => this.click(event));
      this.plot.addEventListener("keydown", (event) => this.keyed(event));
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
      else if (performance.now() - this.heard > ECHO_MS) this.follow(value, false);
    }

    start(value) {
      this.key = value.key;
      this.heard = -Infinity;
      this.drawn = null;
      this.rowBytes = 0;
      this.highest = 0;
      this.cursor = -1;
      this.marks.replaceChildren();
      this.slider.max = String(value.events - 1);
      this.slider.hidden = !value.events;
      this.follow(value, false);
    }

    follow(state, heard = true) {
      if (heard) this.heard = performance.now();
      if (Number.isFinite(state.pin) && state.pin !== this.pin) {
        this.pin = state.pin;
        this.mark();
      }
      this.colour = state.colour || this.colour || "category";
      if (Number.isFinite(state.at)) this.at = state.at;
      this.slider.value = String(this.at);
      this.slider.setAttribute("aria-valuetext", eventWords(this.at));
      this.ask();
    }

    scrub(at) {
      this.heard = performance.now();
      this.follow({ at });
      cancelAnimationFrame(this.going);
      this.going = requestAnimationFrame(() => window.dispatchEvent(new CustomEvent("memviz:go", { detail: { at } })));
    }

    wanted() {
      return { key: this.key, at: this.at, colour: this.colour, table: this.details.open };
    }

    /** One question at a time; the last drawn picture stays until the newest answer is there. */
    async ask() {
      if (this.asking || !this.key || !this.root.clientWidth) return;
      const request = this.wanted();
      const words = JSON.stringify(request);
      if (words === this.answered) return;
      this.asking = true;
      try {
        const started = performance.now();
        const answer = await this.server.segment_map(request);
        const moment = await read(answer);
        if (request.key === this.key) this.take(answer, moment, started);
        this.answered = words;
      } catch (error) {
        this.answered = words;
        this.title.textContent = `The map could not be drawn (${error.message || error}). Open the trace again.`;
      } finally {
        this.asking = false;
      }
      if (JSON.stringify(this.wanted()) !== words) this.ask();
    }

    take(answer, moment, started) {
      this.drawn = moment;
      this.cursor = -1;
      this.palettes = {};
      for (const [mode, table] of Object.entries(moment.header.palettes)) this.palettes[mode] = Uint32Array.from(table, pixel);
      this.title.textContent = answer.title;
      // Both are made by memviz.ui.payloads.segment_view, which escapes every text.
      this.figures.innerHTML = answer.figures;
      if (answer.table) this.table.innerHTML = answer.table;
      this.plot.setAttribute("aria-label", `The allocator's segments. ${answer.title}`);
      this.draw();
      this.root.dataset.answerMs = (performance.now() - started).toFixed(1);
      this.root.dataset.at = String(moment.header.at);
    }

    // -- drawing

    resized() {
      if (!this.root.clientWidth) return;
      this.root.classList.toggle("mvs-narrow", this.root.clientWidth < 560);
      if (this.drawn && this.width !== this.plot.clientWidth) {
        this.highest = 0;
        this.draw();
      }
      this.ask();
    }

    draw() {
      this.width = Math.floor(this.plot.clientWidth);
      if (!this.drawn || !this.width) return;
      const started = performance.now();
      const { segments } = this.drawn;
      const order = L.drawingOrder(segments.size, segments.group, this.by);
      if (!this.rowBytes) this.rowBytes = L.chooseRowLength(segments.size, segments.group, order, this.width);
      this.layout = L.shelveWithin(segments.size, segments.group, order, this.rowBytes);
      this.rowBytes = this.layout.rowBytes;
      this.place();
      this.paint();
      this.mark();
      this.showRows();
      this.root.dataset.drawMs = (performance.now() - started).toFixed(1);
      this.root.dataset.drawn = String(Number(this.root.dataset.drawn || 0) + 1);
    }

    /** How high rows are and where each begins, headings included. */
    place() {
      const { rows, heads } = this.layout;
      const named = this.drawn.header.groups.length > 1 || this.drawn.header.groups.some(([name]) => name !== "default pool");
      this.pitch = rows * TALL <= ROOM ? TALL : Math.max(Math.floor(ROOM / rows), 7);
      this.tall = this.pitch - (this.pitch > 15 ? 5 : this.pitch > 9 ? 3 : 2);
      this.tops = new Int32Array(rows + 1);
      const nodes = [];
      let y = 0;
      let head = 0;
      for (let row = 0; row < rows; row++) {
        if (head < heads.length && heads[head].row === row) {
          if (named) {
            const [name, words] = this.drawn.header.groups[heads[head].group];
            if (row) y += 6;
            nodes.push(el("div", { class: "mvs-head", style: `top:${y}px` }, el("b", {}, name), ` ${words}`));
            y += HEAD;
          }
          head++;
        }
        this.tops[row] = y;
        y += this.pitch;
      }
      this.tops[rows] = y;
      this.heads.replaceChildren(...nodes);
      // The page below must not jump up and down while the moment moves.
      this.highest = Math.max(this.highest, y);
      this.height = Math.max(y, 1);
      this.plot.style.height = `${this.highest}px`;
    }

    paint() {
      const scale = Math.min(window.devicePixelRatio || 1, 2);
      this.columns = Math.max(Math.round(this.width * scale), 1);
      this.owner = L.owners(this.layout, this.drawn.tiles, this.columns);
      const image = new ImageData(this.columns, Math.max(Math.round(this.height * scale), 1));
      const look = this.look(scale);
      const target = new Uint32Array(image.data.buffer);
      this.labels = [];
      for (let row = 0; row < this.layout.rows; row++) this.paintRow(target, row, look);
      this.canvas.width = image.width;
      this.canvas.height = image.height;
      this.canvas.style.height = `${this.height}px`;
      const pen = this.canvas.getContext("2d");
      pen.putImageData(image, 0, 0);
      this.writeLabels(pen, scale);
    }

    look(scale) {
      const colour = (name) => {
        const text = getComputedStyle(this.root).getPropertyValue(name).trim();
        return pixel(parseInt(/^#[0-9a-f]{6}$/i.test(text) ? text.slice(1) : "808080", 16));
      };
      return { scale, page: colour("--mv-bg"), hatch: colour("--mv-hatch"), line: colour("--mv-line"), faded: new Map(), palette: this.palettes[isDark() ? "dark" : "light"] };
    }

    /** One line of pixels says what each column is; it is then repeated downwards, with its pattern. */
    paintRow(target, row, look) {
      const { columns } = this;
      const tall = Math.round(this.tall * look.scale);
      const top = Math.round(this.tops[row] * look.scale);
      const line = new Uint32Array(columns);
      const pattern = new Uint8Array(columns);
      for (let x = 0; x < columns; ) {
        const tile = this.owner[row * columns + x];
        let end = x + 1;
        while (end < columns && this.owner[row * columns + end] === tile) end++;
        if (tile >= 0) this.fill(line, pattern, { row, tile, x, end }, look);
        x = end;
      }
      for (let y = 0; y < tall; y++) {
        const at = (top + y) * columns;
        if (at + columns > target.length) return;
        target.set(line, at);
        this.patterns(target, pattern, { at, y, tall }, look);
      }
    }

    fill(line, pattern, { row, tile, x, end }, look) {
      const { tiles, segments } = this.drawn;
      const wide = (end - x) / look.scale;
      const gap = this.gapAfter(tile, end, row, look.scale, segments);
      const upto = end - gap;
      if (tiles.kind[tile] === FREE) {
        line.fill(look.page, x, upto);
        pattern.fill(FREE + 1, x, upto);
        if (wide > 2) line[x] = line[upto - 1] = look.line;
        if (wide > 2) pattern[x] = pattern[upto - 1] = 0;
        return;
      }
      const colours = this.coloursOf(tile, look);
      line.fill(colours[0], x, upto);
      this.fillRounding(line, { row, tile, upto }, colours[0], look);
      if (tiles.kind[tile] === WAITING) pattern.fill(WAITING + 1, x, upto);
      if (wide > 2) line[upto - 1] = wide > 4 ? look.page : colours[2];
      if (wide > 2) pattern[upto - 1] = 0;
      this.noteLabel(row, tile, x, upto, colours[0], look.scale);
    }

    coloursOf(tile, look) {
      const { tiles } = this.drawn;
      // The same grain as the timeline's, so that a block looks the same in both.
      const shade = (Math.imul(tiles.row[tile] - 1, HASH) >>> 0) % SHADES;
      const at = (tiles.group[tile] * SHADES + shade) * EDGES;
      return look.palette.subarray(at, at + EDGES);
    }

    /** Pixels left empty where a segment ends, so that two segments are not taken for one. */
    gapAfter(tile, end, row, scale, segments) {
      const { tiles } = this.drawn;
      const segment = tiles.segment[tile];
      if (end < this.columns && this.owner[row * this.columns + end] >= 0 && tiles.segment[this.owner[row * this.columns + end]] === segment) return 0;
      if (tile !== tiles.first[segment + 1] - 1) return 0;
      const wide = (segments.size[segment] / this.layout.rowBytes) * this.width;
      return wide >= 8 ? Math.round(3 * scale) : wide >= 3 ? Math.round(scale) : 0;
    }

    /** What the block has beyond the bytes asked for, paler, where that is a pixel or more. */
    fillRounding(line, { row, tile, upto }, colour, look) {
      const { tiles } = this.drawn;
      const spare = tiles.size[tile] - tiles.requested[tile];
      if ((spare / this.layout.rowBytes) * this.columns < 1) return;
      let before = 0;
      for (const place of L.placesOf(this.layout, tiles, tile)) {
        const asked = place.from + Math.max(tiles.requested[tile] - before, 0);
        before += place.to - place.from;
        if (place.row !== row || asked >= place.to) continue;
        const from = Math.round((asked / this.layout.rowBytes) * this.columns);
        if (from < upto) line.fill(mixed(colour, look.page, 0.62), from, upto);
      }
    }

    patterns(target, pattern, { at, y, tall }, look) {
      const { scale } = look;
      const thick = Math.max(Math.round(scale), 1);
      const period = Math.round(5 * scale);
      const rim = y < thick || y >= tall - thick;
      for (let x = 0; x < pattern.length; x++) {
        const kind = pattern[x];
        if (kind === FREE + 1) {
          if (rim) target[at + x] = look.line;
          else if ((x + y) % period < thick) target[at + x] = look.hatch;
        } else if (kind === WAITING + 1 && (x + 10 * tall - y) % (2 * period) < period) target[at + x] = faded(target[at + x], look);
      }
    }

    noteLabel(row, tile, x, end, colour, scale) {
      const { tiles } = this.drawn;
      if (this.tall < 15 || (end - x) / scale < LABEL_ROOM || this.labels.length >= MOST_LABELS) return;
      if (tiles.kind[tile] === LIVE) this.labels.push({ row, x: x / scale, tile, colour });
    }

    writeLabels(pen, scale) {
      pen.setTransform(scale, 0, 0, scale, 0, 0);
      pen.font = `11px ${getComputedStyle(this.root).fontFamily}`;
      pen.textBaseline = "middle";
      let before = -1;
      for (const { row, x, tile, colour } of this.labels) {
        if (tile === before) continue;
        before = tile;
        pen.fillStyle = textOn(colour);
        pen.fillText(bytesText(this.drawn.tiles.size[tile]), x + 6, this.tops[row] + this.tall / 2 + 0.5);
      }
    }

    /** Outlines of the pinned block and of the one under the pointer. */
    mark() {
      if (!this.drawn || !this.layout) return;
      const { tiles } = this.drawn;
      const pinned = this.pin >= 0 ? tiles.row.indexOf(this.pin + 1) : -1;
      const nodes = [...this.outlines(pinned, "mvs-pinned"), ...(this.cursor === pinned ? [] : this.outlines(this.cursor, "mvs-pointed"))];
      this.marks.replaceChildren(...nodes);
      this.note.textContent = this.pin >= 0 && pinned < 0 ? " · the pinned allocation is not live here" : "";
      this.root.dataset.pinned = String(pinned >= 0 ? this.pin : -1);
    }

    outlines(tile, name) {
      if (tile < 0) return [];
      const scale = this.width / this.layout.rowBytes;
      return L.placesOf(this.layout, this.drawn.tiles, tile).map(({ row, from, to }) =>
        el("i", { class: name, style: `left:${from * scale}px;top:${this.tops[row]}px;width:${Math.max((to - from) * scale, 3)}px;height:${this.tall}px` }));
    }

    showRows() {
      const reserved = this.drawn.segments.size.reduce((a, b) => a + b, 0);
      this.rowText.textContent = `${bytesText(this.layout.rowBytes)} a row`;
      this.longer.disabled = this.layout.rowBytes >= Math.max(reserved, 1);
      this.shorter.disabled = this.layout.rows * 2 > L.MOST_ROWS || this.layout.rowBytes <= 1024;
    }

    stretchRows(factor) {
      this.rowBytes = Math.max(this.layout.rowBytes * factor, 1024);
      this.highest = 0;
      this.draw();
    }

    orderBy(by) {
      this.by = by;
      this.cursor = -1;
      this.showOrder();
      this.draw();
    }

    showOrder() {
      this.bySize.setAttribute("aria-pressed", String(this.by === "size"));
      this.byAddress.setAttribute("aria-pressed", String(this.by === "address"));
    }

    // -- what people do

    under(event) {
      const box = this.plot.getBoundingClientRect();
      const [x, y] = [event.clientX - box.left, event.clientY - box.top];
      if (!this.owner || x < 0 || x >= this.width) return { x, y, row: -1, tile: -1 };
      let row = this.layout.rows - 1;
      while (row >= 0 && this.tops[row] > y) row--;
      if (row < 0 || y >= this.tops[row] + this.tall) return { x, y, row: -1, tile: -1 };
      const column = clamp(Math.floor((x / this.width) * this.columns), 0, this.columns - 1);
      return { x, y, row, tile: this.owner[row * this.columns + column] };
    }

    hover(event) {
      if (!this.drawn || !this.layout || event.pointerType === "touch") return;
      const at = this.under(event);
      this.point(at.tile, at);
    }

    click(event) {
      if (!this.drawn || !this.layout) return;
      const at = this.under(event);
      this.point(at.tile, at);
      this.pinTile(at.tile);
    }

    pinTile(tile) {
      if (tile < 0 || this.drawn.tiles.kind[tile] === FREE) return;
      window.dispatchEvent(new CustomEvent("memviz:go", { detail: { pin: this.drawn.tiles.row[tile] - 1 } }));
    }

    point(tile, at) {
      if (tile !== this.cursor) {
        this.cursor = tile;
        this.mark();
      }
      this.tip.hidden = tile < 0;
      if (tile >= 0) this.showTip(at, this.tipLines(tile, at));
    }

    showTip(at, lines) {
      this.tip.replaceChildren(...lines.map(([strong, soft], i) => el("div", {}, i ? strong : el("b", {}, strong), soft ? ` ${soft}` : "")));
      this.tip.hidden = false;
      const [wide, high] = [this.tip.offsetWidth, this.tip.offsetHeight];
      this.tip.style.left = `${at.x + 14 + wide > this.width ? Math.max(at.x - 14 - wide, 0) : at.x + 14}px`;
      this.tip.style.top = `${at.y + 14 + high > Math.max(this.height, 120) ? Math.max(at.y - 14 - high, 0) : at.y + 14}px`;
    }

    tipLines(tile, at) {
      const { tiles } = this.drawn;
      const perPixel = this.layout.rowBytes / this.width;
      if (at && tiles.size[tile] < perPixel) {
        const from = Math.floor(at.x) * perPixel;
        const together = L.tilesIn(this.layout, tiles, at.row, from, from + perPixel).filter((each) => tiles.kind[each] !== FREE);
        const bytes = together.reduce((sum, each) => sum + tiles.size[each], 0);
        if (together.length > 1) return [[`${grouped(together.length)} blocks, ${bytesText(bytes)} together`], ["shorter rows tell them apart"]];
      }
      return tiles.kind[tile] === FREE ? this.freeLines(tile) : this.blockLines(tile);
    }

    freeLines(tile) {
      return [[`${bytesText(this.drawn.tiles.size[tile])} free`], [this.segmentWords(this.drawn.tiles.segment[tile])]];
    }

    blockLines(tile) {
      const { tiles, header } = this.drawn;
      const [size, asked] = [tiles.size[tile], tiles.requested[tile]];
      const block = size === asked ? "its block is as large" : `in a block of ${grouped(size)} B`;
      return [
        [bytesText(asked), header.sites[tiles.site[tile]]],
        [`${header.meanings[tiles.group[tile]]} · ${grouped(asked)} B asked, ${block}`],
        [this.ageWords(tile)],
      ];
    }

    ageWords(tile) {
      const { tiles, header } = this.drawn;
      const waits = tiles.kind[tile] === WAITING ? "freed, waits for another stream · " : "";
      if (!tiles.start[tile]) return `${waits}there before the first event`;
      const start = tiles.start[tile] - 1;
      const passed = header.at - start;
      const time = tiles.age ? `, ${durationText(tiles.age[tile])}` : "";
      return `${waits}since event ${grouped(start)}: ${grouped(passed)} event${passed === 1 ? "" : "s"}${time} old`;
    }

    segmentWords(segment) {
      const { segments } = this.drawn;
      const kind = segments.flags[segment] & 2 ? "an expandable range" : "a segment";
      const address = (BigInt(segments.high[segment]) << 32n) + BigInt(segments.low[segment]);
      return `in ${kind} of ${bytesText(segments.size[segment])} at 0x${address.toString(16)}, ${segments.flags[segment] & 1 ? "large" : "small"} pool`;
    }

    keyed(event) {
      if (!this.drawn || !this.layout || event.ctrlKey || event.metaKey || event.altKey) return;
      const acts = {
        ArrowRight: () => this.walk(1),
        ArrowLeft: () => this.walk(-1),
        ArrowDown: () => this.walkRow(1),
        ArrowUp: () => this.walkRow(-1),
        Home: () => this.goTo(this.inOrder()[0]),
        End: () => this.goTo(this.inOrder().at(-1)),
        Enter: () => this.pinTile(this.cursor),
        Escape: () => this.undo(),
      };
      if (!acts[event.key]) return;
      event.preventDefault();
      acts[event.key]();
    }

    /** Tiles as they are read: along the rows. */
    inOrder() {
      const { tiles } = this.drawn;
      const found = [];
      for (const segment of this.layout.firstPiece.keys()) for (let t = tiles.first[segment]; t < tiles.first[segment + 1]; t++) found.push(t);
      return found;
    }

    walk(step) {
      const order = this.inOrder();
      const at = this.cursor < 0 ? (step > 0 ? -1 : order.length) : order.indexOf(this.cursor);
      this.goTo(order[clamp(at + step, 0, order.length - 1)]);
    }

    walkRow(step) {
      if (this.cursor < 0) return this.walk(1);
      const [place] = L.placesOf(this.layout, this.drawn.tiles, this.cursor);
      const middle = Math.floor((((place.from + place.to) / 2) / this.layout.rowBytes) * this.columns);
      for (let row = place.row + step; row >= 0 && row < this.layout.rows; row += step) {
        const tile = this.owner[row * this.columns + clamp(middle, 0, this.columns - 1)];
        if (tile >= 0 && tile !== this.cursor) return this.goTo(tile);
      }
    }

    goTo(tile) {
      if (tile === undefined) return;
      this.cursor = tile;
      this.mark();
      const [{ row, from }] = L.placesOf(this.layout, this.drawn.tiles, tile);
      const lines = this.tipLines(tile);
      this.showTip({ x: (from / this.layout.rowBytes) * this.width, y: this.tops[row] + this.tall }, lines);
      this.live.textContent = lines.flat().filter(Boolean).join(", ");
    }

    /** One thing at a time. */
    undo() {
      if (this.cursor >= 0) this.point(-1);
      else if (this.pin >= 0) window.dispatchEvent(new CustomEvent("memviz:go", { detail: { pin: this.pin } }));
    }
  }

  function mount(element, { props, watch, server }) {
    const map = new SegmentMap(element, { server });
    element.memvizSegmentMap = map;
    watch("value", () => map.load(props.value));
    map.load(props.value);
  }

  globalThis.memvizSegmentMap = { mount };
})();
