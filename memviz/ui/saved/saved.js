// A saved page: the page's own components with everything that they would ask a server for in this very file.
// Panels turn to other views by buttons with [data-set], the words of the state that they change; views.py makes both.
(() => {
  "use strict";
  const R = globalThis.memvizRaster;
  const { el } = globalThis.memvizTimeline;
  const { grouped, bytesText } = globalThis.memvizWords;
  const saved = JSON.parse(document.getElementById("mv-saved").textContent);
  const place = (id) => document.getElementById(id);

  // -- light or dark: as a visitor chose, else as the system has it

  const system = matchMedia("(prefers-color-scheme: dark)");
  const chosen = () => {
    try {
      return localStorage.getItem("memviz-dark");
    } catch {
      return null;
    }
  };
  const follow = () => chosen() === null && document.body.classList.toggle("dark", system.matches);
  follow();
  system.addEventListener("change", follow);

  // -- what a server would answer

  const columnsOf = async ({ header, body }) => R.unpack(header, R.bytesOf(body));
  const empty = { header: { columns: [] }, columns: {} };

  class SavedTrace {
    constructor(data) {
      this.data = data;
      this.known = new Map();
    }

    /** Unpacked once. */
    columns(name) {
      if (!this.known.has(name)) this.known.set(name, columnsOf(this.data.pieces[name]));
      return this.known.get(name);
    }

    once(name, make) {
      if (!this.known.has(name)) this.known.set(name, make());
      return this.known.get(name);
    }

    has(name) {
      return Boolean(this.data.pieces[name]);
    }

    async piece({ piece, meaning, by, group }) {
      if (piece === "sites") return this.sites();
      if (piece === "lit") return { header: { columns: [] }, columns: { bits: await this.bits(this.data.lights, by, group) } };
      return this.data.pieces[piece === "groups" ? `groups ${meaning || "category"}` : piece] || empty;
    }

    sites() {
      return this.once("sites", async () => {
        const { labels, code } = this.data.sites;
        const [{ site }, { stack }] = await Promise.all([columnsOf(code), this.columns("stacks")]);
        return { header: { labels, columns: [] }, columns: { site: stack.map((each) => site[each]) } };
      });
    }

    /** One bit per allocation: those of a group. */
    async bits(lights, by, group) {
      const { own, isIn } = await this.choice(lights, by, group);
      const bits = new Uint8Array((own.length >> 3) + 1);
      for (let i = 0; i < own.length; i++) if (isIn(own[i])) bits[i >> 3] |= 1 << (i & 7);
      return bits;
    }

    async choice(lights, by, group) {
      if (by === "category") {
        const wanted = this.data.pieces["groups category"].header.labels.indexOf(group);
        return { own: (await this.columns("groups category")).group, isIn: (code) => code === wanted };
      }
      if (by === "path") {
        const { stack } = await this.columns("stacks");
        const below = await this.stacksBelow(group.split(",").map(Number));
        return { own: stack, isIn: (code) => below[code] === 1 };
      }
      const light = lights[by] || { keys: [] };
      const wanted = light.keys.indexOf(group) + 1;
      const own = by === "module" ? (await this.columns("modules")).module : (await this.columns("stacks")).stack;
      if (!wanted) return { own, isIn: () => false };
      light.places ??= (await columnsOf(light.place)).place;
      return { own, isIn: (code) => light.places[code] === wanted };
    }

    /** By the numbers of the piece "stacks": 1 where the stack's outermost frames are these. */
    async stacksBelow(path) {
      const { length, frame } = await this.columns("frames");
      const below = new Uint8Array(length.length + 2);
      let end = 0;
      for (let i = 0; i < length.length; i++) {
        end += length[i];
        below[i + 1] = length[i] >= path.length && path.every((each, depth) => frame[end - 1 - depth] === each) ? 1 : 0;
      }
      if (path.length === 1 && path[0] === this.data.pieces.frames.header.no_frames) below[0] = 1;
      return below;
    }

    spans() {
      return this.once("spans", async () => {
        const { start, span, size_low: low, size_high: high } = await this.columns("timeline");
        let at = 0;
        const begins = start.map((step) => (at += step));
        return { begins, ends: begins.map((begin, i) => begin + span[i]), size: (row) => low[row] + high[row] * 2 ** 32 };
      });
    }

    /** What is known of one allocation. */
    async allocation(row) {
      const [{ begins, ends, size }, { stack }, { group }, { header, columns }] = await Promise.all([
        this.spans(),
        this.columns("stacks"),
        this.columns("groups category"),
        this.sites(),
      ]);
      const { labels, colours } = this.data.pieces["groups category"].header;
      return {
        bytes: size(row),
        first: begins[row] - 1,
        last: ends[row] - 1,
        events: this.data.pieces.timeline.header.events,
        kind: labels[group[row]],
        colour: { light: colours.light[group[row]], dark: colours.dark[group[row]] },
        site: header.labels[columns.site[row]],
        text: this.data.stacks.texts[stack[row]],
      };
    }
  }

  const traces = Object.fromEntries(Object.entries(saved.traces || {}).map(([key, data]) => [key, new SavedTrace(data)]));
  const server = {
    timeline_piece: async (request) => traces[request.key].piece(request),
    compared_rows: async ({ sides, by, row }) => ({ lit: await Promise.all(sides.map(async (key) => ({ bits: await traces[key].bits(traces[key].data.compared, by, row) }))) }),
    segment_map: async ({ key }) => saved.maps[key],
  };

  // -- one component in its element; `give` draws another value

  function mount(component, host, value, heard = () => {}) {
    const props = { value };
    let changed = () => {};
    component.mount(host, { props, server, watch: (_, call) => (changed = call), trigger: (_, data) => heard(data) });
    return (next) => {
      props.value = next;
      changed();
    };
  }

  // -- panels

  const state = saved.state || {};
  let texts = [];
  const after = new Map();

  const viewOf = ({ fields, views }) => texts[views[fields.map((field) => state[field]).join("|")]];

  function draw() {
    for (const panel of saved.panels || []) {
      const html = viewOf(panel);
      const host = place(panel.place);
      if (html === undefined || panel.shown === html) continue;
      panel.shown = html;
      host.innerHTML = html;
      for (const act of after.get(panel.place) || []) act();
    }
    for (const part of document.querySelectorAll("[data-shown]")) part.hidden = part.dataset.shown !== state.shown;
    for (const tab of document.querySelectorAll("[data-tab]")) tab.setAttribute("aria-selected", String(tab.dataset.tab === (state.shown === "compare" ? "compare" : state.trace)));
  }

  const drawn = (id, act) => after.set(id, [...(after.get(id) || []), act]);

  document.addEventListener("click", (event) => {
    const button = event.target instanceof Element && event.target.closest("[data-set]");
    if (!button) return;
    const change = JSON.parse(button.dataset.set);
    const host = button.closest("[id]");
    const before = { ...state };
    if (button.dataset.act === "sort" && !Object.keys(change).length) return sortBy(button);
    Object.assign(state, change);
    draw();
    turned(before);
    // What was pressed is drawn anew; the keyboard stays with it.
    if (button.isConnected || !host) return;
    const same = (each) => each.dataset.act === button.dataset.act && each.dataset.value === button.dataset.value;
    [...host.querySelectorAll("[data-set]")].find(same)?.focus();
  });

  // -- tables, sorted by a column; what is summed up stays at the end

  const sorted = { name: "bytes", rising: false };

  function sortBy(button) {
    const name = button.dataset.value;
    sorted.rising = name === sorted.name ? !sorted.rising : ["name", "category"].includes(name);
    sorted.name = name;
    sortTables();
  }

  function sortTables() {
    for (const table of document.querySelectorAll("#live-set .mv-groups")) {
      const heads = [...table.tHead.rows[0].cells];
      const button = table.querySelector(`thead [data-value="${sorted.name}"]`);
      if (!button) continue;
      for (const head of heads) {
        const mine = head.querySelector("[data-act=sort]");
        if (!mine) continue;
        const is = mine === button;
        mine.textContent = mine.textContent.replace(/ [↑↓]$/, "") + (is ? (sorted.rising ? " ↑" : " ↓") : "");
        if (is) head.setAttribute("aria-sort", sorted.rising ? "ascending" : "descending");
        else head.removeAttribute("aria-sort");
      }
      const column = heads.indexOf(button.closest("th"));
      const isNumber = heads[column].classList.contains("mv-number");
      const valueOf = (row) => {
        const cell = row.cells[column];
        const words = cell.querySelector("span[title]")?.title || cell.textContent;
        return isNumber ? Number(words.replace(/[^\d.-]/g, "")) : (cell.querySelector(".mv-name")?.textContent || words).toLowerCase().trim();
      };
      const rows = [...table.tBodies[0].rows];
      const movable = rows.filter((row) => row.querySelector("[data-keep]"));
      const order = (a, b) => (a[0] < b[0] ? -1 : a[0] > b[0] ? 1 : 0) * (sorted.rising ? 1 : -1);
      const ordered = movable.map((row) => [valueOf(row), row]).sort(order);
      table.tBodies[0].prepend(...ordered.map(([, row]) => row));
    }
  }

  // -- the pinned allocation

  const fact = (name, ...value) => [el("dt", {}, name), el("dd", {}, ...value)];
  const soft = (words) => el("span", { class: "mv-soft" }, words);
  const eventLink = (event) => el("button", { type: "button", class: "mv-link", "data-mv-at": event, title: "Go to this event" }, grouped(event));

  async function showPinned(key, row) {
    const found = await traces[key].allocation(row);
    if (pinned !== row || state.trace !== key) return;
    const square = el("i", { class: "mv-kind mv-square", style: `--mv-light:${found.colour.light};--mv-dark:${found.colour.dark}`, "aria-hidden": "true" });
    const begin = found.first >= 0 ? ["event ", eventLink(found.first)] : ["before the first event"];
    const end = found.last < found.events ? eventLink(found.last) : "the end";
    const stack = el("div");
    if (found.text !== undefined) stack.innerHTML = texts[found.text];
    else stack.append(soft("Its stack is not kept in this file."));
    place("inspector").replaceChildren(
      el("section", { class: "mv-pinned" },
        el("button", { type: "button", class: "mv-handle", "data-mv-sheet": "", "aria-label": "Taller or smaller" }),
        el("div", { class: "mv-aside-head" }, el("h2", {}, "Pinned allocation"), el("button", { type: "button", class: "mv-link", "data-mv-pin": row }, "Unpin ", el("kbd", {}, "Esc"))),
        el("p", { class: "mv-figure" }, el("b", {}, bytesText(found.bytes)), ` in ${found.site}`),
        el("dl", { class: "mv-dl" },
          ...fact("Asked", `${grouped(found.bytes)} B`),
          ...fact("Category", square, ` ${found.kind}`),
          ...fact("Lifetime", ...begin, " → ", end)),
        stack));
  }

  let pinned = -1;

  function hear(detail) {
    if (!detail || detail.key !== state.trace) return;
    const moments = traces[state.trace].data.moments;
    if (moments.includes(detail.at) && String(detail.at) !== state.at) {
      Object.assign(state, { at: String(detail.at), path: "" });
      draw();
    }
    if (detail.pin === pinned) return;
    pinned = detail.pin;
    if (pinned >= 0) return void showPinned(state.trace, pinned);
    unpin();
  }

  function unpin() {
    const panel = saved.panels.find((each) => each.place === "inspector");
    panel.shown = "";
    draw();
  }

  // -- the parts of the page

  /** What a timeline is not given, it does not offer. */
  function offered(host, key) {
    for (const option of host.querySelectorAll('select[aria-label="Colour"] option')) if (!traces[key].has(`groups ${option.value}`)) option.remove();
    const hasTimes = traces[key].data.value.has_times;
    for (const choice of host.querySelectorAll('[aria-label="Axis"]')) choice.hidden = !hasTimes;
  }

  let giveTimeline = () => {};

  function turned(before) {
    if (state.trace !== before.trace || state.shown !== before.shown) {
      pinned = -1;
      if (state.shown !== "compare") giveTimeline(traces[state.trace].data.value);
    }
    if (saved.compare) turnComparison(before);
    sortTables();
  }

  function startExplore() {
    const host = place("timeline");
    if (!host) return;
    if (state.shown !== "compare") offered(host, state.trace);
    giveTimeline = mount(globalThis.memvizTimeline, host, state.shown === "compare" ? {} : traces[state.trace].data.value, hear);
    offered(host, state.trace);
    const told = [];
    globalThis.memvizLitPanel(place("live-set"), server, (_, act) => told.push(act));
    drawn("live-set", () => {
      for (const act of told) act();
      sortTables();
    });
  }

  let turnComparison = () => {};

  function startComparison() {
    if (!saved.compare) return;
    const { sides, aligned, overlay } = saved.compare;
    const values = () => sides.map((side, i) => ({ ...side, axis: state.axis, align: aligned[Number(state.align)][i] }));
    const overlayValue = () => ({ ...overlay, other: Number(state.other), shown: state.overlay === "yes" });
    const give = values().map((value, i) => mount(globalThis.memvizTimeline, place(`compare-${value.badge}`), value));
    const giveOverlay = mount(globalThis.memvizOverlay, place("compare-overlay"), overlayValue());
    let rowsDrawn = () => {};
    globalThis.memvizWaterfall.mount(place("differences"), { server, trigger: () => {}, watch: (_, act) => (rowsDrawn = act) });
    drawn("differences", () => rowsDrawn());
    turnComparison = (before) => {
      if (before.align !== state.align || before.axis !== state.axis) values().forEach((value, i) => give[i](value));
      if (before.other !== state.other || before.overlay !== state.overlay) giveOverlay(overlayValue());
    };
  }

  function startWhatIf() {
    if (!saved.plot) return;
    mount(globalThis.memvizReservedPlot, place("what-if-plot"), saved.plot);
    mount(globalThis.memvizSegmentPair, place("what-if-maps"), { maps: saved.shown_maps });
  }

  async function start() {
    const packed = new Blob([R.bytesOf(saved.texts)]).stream().pipeThrough(new DecompressionStream("deflate"));
    texts = JSON.parse(await new Response(packed).text());
    startExplore();
    startComparison();
    startWhatIf();
    draw();
    document.body.dataset.saved = "ready";
  }

  start();
})();
