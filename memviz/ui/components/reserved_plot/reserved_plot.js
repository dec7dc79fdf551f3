// Live bytes as an area, reserved bytes as lines over the same events: as recorded dashed, as replayed thick, the limit
// red, and a mark where memory runs out. The value is made by memviz/ui/what_if/reserved_plot.py.
(() => {
  "use strict";
  const { el, shape, clamp, spread } = globalThis.memvizTimeline;
  const { grouped, bytesText, byteTicks, timeTick, roundStep } = globalThis.memvizWords;
  const HEADROOM = 1.08;
  const TICK_ROOM = 90;
  const LETTER = 6.2;
  let made = 0;

  const eventWords = (event) => (event < 0 ? "before the first event" : `event ${grouped(event)}`);

  class ReservedPlot {
    constructor(host, { tell }) {
      this.id = ++made;
      this.host = host;
      this.tell = tell;
      this.axis = "event";
      this.ruler = -1;
      this.build();
      this.listen();
    }

    build() {
      this.legend = el("div", { class: "mvr-legend", role: "list", "aria-label": "What the lines mean" });
      this.byEvent = el("button", { type: "button", onclick: () => this.setAxis("event") }, "Event");
      this.byTime = el("button", { type: "button", onclick: () => this.setAxis("time") }, "Time");
      const choice = el("div", { class: "mvt-switch", role: "group", "aria-label": "Axis" }, this.byEvent, this.byTime);
      this.svg = shape("svg", { class: "mvt-svg", "aria-hidden": "true" });
      this.over = shape("svg", { class: "mvt-svg", "aria-hidden": "true" });
      this.tip = el("div", { class: "mvt-tip", role: "tooltip", hidden: "" });
      this.plot = el("div", { class: "mvt-plot mvr-plot", tabindex: "0", role: "application", "aria-describedby": `mvr-keys-${this.id}` }, this.svg, this.over, this.tip);
      this.help = el("div", { class: "mvt-hidden", id: `mvr-keys-${this.id}` },
        "Left and right move along the events, Home and End go to the first and last, Enter shows the segments at that moment, Escape ends it, T changes the axis.");
      this.live = el("div", { class: "mvt-hidden", "aria-live": "polite" });
      this.root = el("div", { class: "mvt mvr", hidden: "" }, el("div", { class: "mvt-bar" }, this.legend, choice), this.plot, this.help, this.live);
    }

    listen() {
      new ResizeObserver(() => this.draw()).observe(this.plot);
      this.plot.addEventListener("pointermove", (event) => event.pointerType !== "touch" && this.point(this.columnAt(event)));
      this.plot.addEventListener("pointerleave", () => this.point(-1));
      this.plot.addEventListener("click", (event) => this.choose(this.columnAt(event)));
      this.plot.addEventListener("keydown", (event) => this.key(event));
    }

    /** Gradio redraws the host's template when the value changes; what we built is put back into it. */
    load(value) {
      const place = this.host.querySelector(".mvr-place") || this.host;
      if (this.root.parentNode !== place) place.append(this.root);
      this.value = value && value.axes ? value : null;
      this.root.hidden = !this.value;
      if (!this.value) return;
      if (!this.value.axes.time) this.axis = "event";
      this.byTime.disabled = !this.value.axes.time;
      this.byTime.title = this.value.axes.time ? "" : "This trace has no times";
      this.ruler = -1;
      this.plot.setAttribute("aria-label", `Reserved memory over the run. ${value.label}`);
      this.showLegend();
      this.draw();
    }

    setAxis(axis) {
      if (!this.value || !this.value.axes[axis]) return;
      this.axis = axis;
      this.ruler = -1;
      this.draw();
    }

    showLegend() {
      const entry = (kind, words) => el("span", { class: "mvr-key", role: "listitem" }, el("i", { class: `mvr-swatch mvr-${kind}`, "aria-hidden": "true" }), words);
      const entries = [entry("live", "live, the same in all"), entry("dashed", "reserved, as recorded")];
      this.value.names.forEach((name, i) => entries.push(entry(i ? "thin" : "thick", `reserved, ${name}`)));
      if (this.value.limit !== null) entries.push(entry("limit", "limit"));
      this.legend.replaceChildren(...entries);
    }

    // -- places

    get columns() {
      return this.value.axes[this.axis];
    }

    columnAt(event) {
      if (!this.value) return -1;
      const box = this.plot.getBoundingClientRect();
      return clamp(Math.floor(((event.clientX - box.left) / box.width) * this.columns.first.length), 0, this.columns.first.length - 1);
    }

    /** The column that holds an event: the last one that begins no later. */
    columnOf(event) {
      const { first } = this.columns;
      let [low, high] = [0, first.length - 1];
      while (low < high) {
        const middle = (low + high + 1) >> 1;
        if (first[middle] <= event) low = middle;
        else high = middle - 1;
      }
      return low;
    }

    xOf(column) {
      return (column / this.columns.first.length) * this.width;
    }

    yOf(bytes) {
      return this.height * (1 - bytes / this.top);
    }

    // -- drawing

    draw() {
      this.width = Math.floor(this.plot.clientWidth);
      this.height = Math.floor(this.plot.clientHeight);
      if (!this.value || !this.width || !this.height) return;
      this.root.classList.toggle("mvt-narrow", this.root.clientWidth < 560);
      this.byEvent.setAttribute("aria-pressed", String(this.axis === "event"));
      this.byTime.setAttribute("aria-pressed", String(this.axis === "time"));
      const { live, recorded, lines } = this.columns;
      const most = (values) => values.reduce((a, b) => Math.max(a, b), 0);
      this.top = Math.max(most(live), most(recorded), ...lines.map(most), this.value.limit || 0, 1) * HEADROOM;
      for (const svg of [this.svg, this.over]) svg.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
      this.svg.replaceChildren(...this.ground(), ...this.shapes(), ...this.stops(), ...this.labels());
      this.drawRuler();
      this.root.dataset.drawn = String(Number(this.root.dataset.drawn || 0) + 1);
    }

    ground() {
      const parts = [];
      for (const { value, text } of byteTicks(this.top)) {
        const y = this.yOf(value);
        parts.push(shape("line", { x1: 0, x2: this.width, y1: y, y2: y, class: "mvt-grid" }));
        parts.push(shape("text", { x: -8, y: y + 4, class: "mvt-tick mvt-left" }, text));
      }
      parts.push(shape("line", { x1: 0, x2: this.width, y1: this.height, y2: this.height, class: "mvt-tickline" }));
      return parts.concat(this.axis === "event" ? this.eventTicks() : this.timeTicks());
    }

    eventTicks() {
      const { events } = this.value;
      const step = roundStep(events / Math.max(this.width / TICK_ROOM, 2), 1);
      const ticks = [];
      for (let event = 0; event < events; event += step) ticks.push([this.xOf(this.columnOf(event)), `${event ? "" : "event "}${grouped(event)}`]);
      return this.ticks(ticks);
    }

    timeTicks() {
      const { span } = this.columns;
      const step = roundStep(span / Math.max(this.width / TICK_ROOM, 2), 1);
      const ticks = [];
      for (let time = 0; time <= span; time += step) ticks.push([(time / Math.max(span, 1)) * this.width, timeTick(time, step)]);
      return this.ticks(ticks);
    }

    ticks(places) {
      return places.flatMap(([x, text]) => {
        const anchor = x < 30 ? "start" : x > this.width - 30 ? "end" : "middle";
        return [
          shape("line", { x1: x, x2: x, y1: this.height, y2: this.height + 4, class: "mvt-tickline" }),
          shape("text", { x, y: this.height + 17, class: "mvt-tick", "text-anchor": anchor }, text),
        ];
      });
    }

    /** Each value holds until the next column. */
    steps(values) {
      let path = "";
      let before = null;
      values.forEach((value, column) => {
        const y = this.yOf(value).toFixed(1);
        if (y !== before) path += before === null ? `M${this.xOf(column).toFixed(1)},${y}` : `H${this.xOf(column).toFixed(1)}V${y}`;
        before = y;
      });
      return `${path}H${this.xOf(values.length).toFixed(1)}`;
    }

    shapes() {
      const { live, recorded, lines } = this.columns;
      const parts = [shape("path", { d: `${this.steps(live)}V${this.height}H0Z`, class: "mvr-area" })];
      parts.push(shape("path", { d: this.steps(recorded), class: "mvr-line mvr-line-dashed" }));
      lines.forEach((values, i) => parts.push(shape("path", { d: this.steps(values), class: `mvr-line mvr-line-${i ? "thin" : "thick"}` })));
      if (this.value.limit !== null) {
        const y = this.yOf(this.value.limit);
        parts.push(shape("line", { x1: 0, x2: this.width, y1: y, y2: y, class: "mvr-limit-line" }));
      }
      return parts;
    }

    /** A ring on the limit, a hairline down, words beside it. Two that are close write at different heights. */
    stops() {
      const parts = [];
      let height = this.height - 10;
      for (const { event, text, reserved } of this.value.stops) {
        const x = clamp(this.xOf(this.columnOf(event) + 0.5), 0, this.width);
        const y = this.yOf(this.value.limit === null ? reserved : this.value.limit);
        const end = x + 20 + text.length * LETTER > this.width;
        parts.push(shape("line", { x1: x, x2: x, y1: y, y2: this.height, class: "mvt-oomline" }));
        parts.push(shape("circle", { cx: x, cy: y, r: 8, class: "mvt-oom" }), shape("path", { d: `M${x - 3},${y - 3}l6,6m0,-6l-6,6`, class: "mvt-oom" }));
        parts.push(shape("text", { x: x + (end ? -8 : 8), y: height, class: "mvt-oomtext", "text-anchor": end ? "end" : "start" }, text));
        height -= 18;
      }
      return parts;
    }

    labels() {
      const { live, recorded, lines } = this.columns;
      const last = (values) => values[values.length - 1];
      const marks = [[this.yOf(last(recorded)), bytesText(last(recorded)), "recorded, end", ""]];
      if (this.value.limit !== null) marks.push([this.yOf(this.value.limit), bytesText(this.value.limit), "limit", " mvr-red"]);
      lines.forEach((values, i) => {
        if (values.length === recorded.length) marks.push([this.yOf(last(values)), bytesText(last(values)), i ? "compared, end" : "replayed, end", ""]);
      });
      marks.push([this.yOf(last(live)), bytesText(last(live)), "live, end", ""]);
      return spread(marks, this.height).flatMap(([y, figure, words, colour]) => [
        shape("text", { x: this.width + 11, y: y + 1, class: `mvt-figure mvt-right${colour}` }, figure),
        shape("text", { x: this.width + 11, y: y + 15, class: `mvt-tick mvt-right${colour}` }, words),
      ]);
    }

    // -- what people do

    point(column) {
      this.ruler = column;
      this.drawRuler();
      this.tip.hidden = column < 0 || !this.value;
      if (!this.tip.hidden) this.showTip(column);
    }

    drawRuler() {
      if (!this.value || !this.width) return;
      const parts = [];
      const at = clamp(this.xOf(this.columnOf(this.value.at) + 0.5), 0, this.width);
      parts.push(shape("path", { d: `M${at - 5},${this.height + 9}h10l-5,-7z`, class: "mvt-peak" }));
      if (this.ruler >= 0) {
        const x = this.xOf(this.ruler + 0.5);
        parts.push(shape("line", { x1: x, x2: x, y1: 0, y2: this.height, class: "mvt-moment" }));
      }
      this.over.replaceChildren(...parts);
    }

    rows(column) {
      const { live, recorded, lines } = this.columns;
      const rows = [[bytesText(live[column]), "live"], [bytesText(recorded[column]), "reserved, as recorded"]];
      lines.forEach((values, i) => rows.push(column < values.length ? [bytesText(values[column]), `reserved, ${this.value.names[i]}`] : ["out of memory", this.value.names[i]]));
      return rows;
    }

    words(column) {
      const { first, count } = this.columns;
      const last = first[column] + Math.max(count[column], 1) - 1;
      return last > first[column] ? `events ${grouped(Math.max(first[column], 0))} to ${grouped(last)}, at most` : eventWords(last);
    }

    showTip(column) {
      this.tip.replaceChildren(el("div", {}, this.words(column)), ...this.rows(column).map(([figure, words]) => el("div", {}, el("b", {}, figure), ` ${words}`)));
      const x = this.xOf(column + 0.5);
      const wide = this.tip.offsetWidth;
      this.tip.style.left = `${x + 14 + wide > this.width ? Math.max(x - 14 - wide, 0) : x + 14}px`;
      this.tip.style.top = "8px";
    }

    /** The event of a column that reserves most in it is not known here; its last one is the state that is left. */
    choose(column) {
      if (!this.value || column < 0) return;
      const { first, count } = this.columns;
      const at = first[column] + Math.max(count[column], 1) - 1;
      this.value = { ...this.value, at };
      this.drawRuler();
      this.tell({ at });
    }

    key(event) {
      if (!this.value || event.ctrlKey || event.metaKey || event.altKey) return;
      const last = this.columns.first.length - 1;
      const from = this.ruler < 0 ? this.columnOf(this.value.at) : this.ruler;
      const acts = {
        ArrowLeft: () => this.walk(clamp(from - (event.shiftKey ? 10 : 1), 0, last)),
        ArrowRight: () => this.walk(clamp(from + (event.shiftKey ? 10 : 1), 0, last)),
        Home: () => this.walk(0),
        End: () => this.walk(last),
        Enter: () => this.choose(from),
        Escape: () => this.point(-1),
        t: () => this.setAxis(this.axis === "event" ? "time" : "event"),
      };
      const act = acts[event.key.length === 1 ? event.key.toLowerCase() : event.key];
      if (!act) return;
      event.preventDefault();
      act();
    }

    walk(column) {
      this.point(column);
      this.live.textContent = [this.words(column), ...this.rows(column).map((row) => row.join(" "))].join(", ");
    }
  }

  function mount(element, { props, watch, trigger }) {
    const plot = new ReservedPlot(element, { tell: (data) => trigger("select", data) });
    watch("value", () => plot.load(props.value));
    plot.load(props.value);
  }

  globalThis.memvizReservedPlot = { mount };
})();
