// Several timelines over each other: the baseline as a silhouette, the others as lines, what lies between coloured.
// It is a memory timeline that draws differently: zooming, panning, axes and keys are inherited, and the columns come
// from the timelines of the same name, which have unpacked them already. So nothing is asked of the server.
(() => {
  "use strict";
  const T = globalThis.memvizTimeline;
  const R = globalThis.memvizRaster;
  const HEADROOM = 1.12;
  const { clamp, el, shape, spread } = T;
  const { bytesText } = globalThis.memvizWords;

  class Overlay extends T.MemoryTimeline {
    constructor(host) {
      super(host, { tell: () => {}, server: {} });
      this.sides = [];
      window.addEventListener("memviz:joined", ({ detail }) => this.wanted && detail.linked === this.wanted.linked && this.gather());
    }

    load(value) {
      this.attach();
      this.wanted = value && value.linked ? value : null;
      this.root.hidden = !this.wanted || !this.wanted.shown;
      this.root.classList.add("mvt-plain");
      if (!this.wanted) this.value = null;
      else this.gather();
    }

    /** Once all are there. Each keeps its own columns and its own place on the axis; the baseline lends its own to us. */
    gather() {
      const { wanted } = this;
      const sides = T.linked(wanted.linked);
      if (!wanted.shown || sides.length < wanted.count) return;
      const [first] = sides;
      this.sides = sides;
      this.spans = first.spans;
      this.times = first.times;
      this.axis = first.axis;
      this.top = Math.max(...sides.map((side) => side.spans.live[side.spans.peak]), 1) * HEADROOM;
      this.moment = first.spans.peak;
      this.view = { ...first.view };
      this.value = { key: first.value.key, linked: wanted.linked, plain: true, align: first.value.align, ruler: first.value.ruler, phases: [], state: {} };
      this.plot.setAttribute("aria-label", wanted.label);
      this.resize();
    }

    /** Most live bytes per pixel column; NaN where this trace has nothing. */
    columnsOf(side, width) {
      const made = new Float64Array(width).fill(NaN);
      const own = side.own();
      const [first, last] = [this.view.first, this.view.last].map((place) => side.fromShared(this.toShared(place)));
      const at = (place) => Math.round(clamp((place - first) / (last - first), 0, 1) * width);
      const [begin, end] = [at(own.first), at(own.last)];
      if (end <= begin) return made;
      const view = { first: Math.max(first, own.first), last: Math.min(last, own.last), columns: end - begin };
      const instants = side.axis === "time" ? R.columnInstantsByTime(side.spans, side.times, view) : R.columnInstants(side.spans, view);
      for (let c = 0; c < instants.length; c++) made[begin + c] = side.spans.live[instants[c]];
      return made;
    }

    drawPlot() {
      const { width, height } = this.size;
      const scale = Math.min(window.devicePixelRatio || 1, 2);
      Object.assign(this, { left: 0, wide: width, instants: [], raster: { columns: width, rows: height } });
      this.lines = this.sides.map((side) => this.columnsOf(side, width));
      this.canvas.width = Math.round(width * scale);
      this.canvas.height = Math.round(height * scale);
      const pen = this.canvas.getContext("2d");
      pen.scale(scale, scale);
      const [baseline, ...others] = this.lines;
      this.fill(pen, baseline, this.colour("--mv-ink-3"), 0.3);
      const chosen = this.lines[this.wanted.other];
      if (chosen) this.between(pen, baseline, chosen);
      this.stroke(pen, baseline, this.colour("--mv-ink-3"), 1);
      others.forEach((line) => line !== chosen && this.stroke(pen, line, this.colour("--mv-ink-2"), 1));
      if (chosen) this.stroke(pen, chosen, this.colour("--mv-ink"), 1.5);
    }

    fill(pen, line, colour, alpha) {
      pen.globalAlpha = alpha;
      pen.fillStyle = colour;
      line.forEach((bytes, x) => bytes >= 0 && pen.fillRect(x, this.yOf(bytes), 1, this.size.height - this.yOf(bytes)));
      pen.globalAlpha = 1;
    }

    between(pen, baseline, other) {
      const [grew, shrank] = [this.colour("--mv-grew"), this.colour("--mv-shrank")];
      pen.globalAlpha = 0.55;
      for (let x = 0; x < baseline.length; x++) {
        if (!(baseline[x] >= 0) || !(other[x] >= 0) || baseline[x] === other[x]) continue;
        pen.fillStyle = other[x] > baseline[x] ? grew : shrank;
        const [top, bottom] = [this.yOf(Math.max(baseline[x], other[x])), this.yOf(Math.min(baseline[x], other[x]))];
        pen.fillRect(x, top, 1, bottom - top);
      }
      pen.globalAlpha = 1;
    }

    stroke(pen, line, colour, width) {
      pen.strokeStyle = colour;
      pen.lineWidth = width;
      pen.beginPath();
      let drawing = false;
      line.forEach((bytes, x) => {
        if (bytes >= 0) {
          const y = this.yOf(bytes);
          if (drawing) pen.lineTo(x, y);
          else pen.moveTo(x, y);
          pen.lineTo(x + 1, y);
        }
        drawing = bytes >= 0;
      });
      pen.stroke();
    }

    reservedPath() {
      return "";
    }

    /** Each peak with its letter, and its bytes at the right. */
    marks() {
      const { width, height } = this.size;
      const labels = [];
      const parts = [];
      for (const side of this.sides) {
        const peak = side.spans.live[side.spans.peak];
        const y = this.yOf(peak);
        const x = this.xOf(this.fromShared(side.toShared(this.placeOfPeak(side))));
        labels.push([y, "", `${side.value.badge} ${bytesText(peak)}`]);
        if (x < 0 || x > width) continue;
        parts.push(shape("path", { d: `M${x - 5},${y - 9}h10l-5,7z`, class: "mvt-peak" }));
        parts.push(shape("text", { x, y: y - 12, class: "mvt-letter" }, side.value.badge));
      }
      for (const [y, , words] of spread(labels, height)) parts.push(shape("text", { x: width + 8, y: y + 4, class: "mvt-figure mvt-right" }, words));
      return parts;
    }

    placeOfPeak(side) {
      return side.axis === "event" ? side.spans.peak + 0.5 : side.placeOf(side.spans.peak);
    }

    pinned() {
      return [];
    }

    momentParts() {
      return [];
    }

    hover(event) {
      if (!this.lines || !this.size || this.dragging || event.pointerType === "touch") return;
      const at = this.local(event);
      this.tellRuler(clamp(this.top * (1 - at.y / this.size.height), 0, this.top));
      const x = clamp(Math.floor(at.x), 0, this.size.width - 1);
      const baseline = this.lines[0][x];
      this.showTip(at, this.sides.map((side, i) => [side.value.badge, this.words(this.lines[i][x], i ? baseline : NaN)]));
    }

    words(bytes, baseline) {
      if (!(bytes >= 0)) return "nothing here";
      if (!(baseline >= 0) || bytes === baseline) return bytesText(bytes);
      return `${bytesText(bytes)}, ${bytes > baseline ? "+" : "-"}${bytesText(Math.abs(bytes - baseline))}`;
    }

    showTip(at, lines) {
      super.showTip(at, []);
      this.tip.replaceChildren(...lines.map(([letter, words]) => el("div", {}, el("b", {}, letter), ` ${words}`)));
      const room = this.size.width - at.x - 14 - this.tip.offsetWidth;
      this.tip.style.left = `${room < 0 ? Math.max(at.x - 14 - this.tip.offsetWidth, 0) : at.x + 14}px`;
    }

    // What only one trace's own timeline can answer.
    click() {}
    walk() {}
    mark() {}
    showMask() {}
    fit() {}
    say() {}
  }

  function mount(element, { props, watch }) {
    const overlay = new Overlay(element);
    watch("value", () => overlay.load(props.value));
    overlay.load(props.value);
  }

  globalThis.memvizOverlay = { mount };
})();
