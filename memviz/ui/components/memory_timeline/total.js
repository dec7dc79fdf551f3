// The first picture of a trace that is still being read: its total, in grey, where every allocation will stand. It has
// the axes of the timeline to come, so that colours fill it and nothing moves.
(() => {
  "use strict";
  const { shape } = globalThis.memvizTimeline;
  const { bytesText, byteTicks } = globalThis.memvizWords;
  const SHADE = 0.4;
  const OVERVIEW = 30;

  /**
   * total: `live` (most bytes per column), `share` of the width that it takes, and once the file is whole `reserved`,
   * `events`, `peak_bytes`, `reserved_bytes`.
   */
  function drawTotal(timeline, total) {
    const { plot, canvas, svg, overview, phases, legend, root } = timeline;
    const [width, height] = [Math.floor(plot.clientWidth), Math.floor(plot.clientHeight)];
    if (!width || !height || !total.live.length) return;
    const most = total.live.reduce((a, b) => Math.max(a, b), 1);
    const top = Math.max(total.reserved_bytes || 0, most) * 1.06;
    const share = total.reserved ? 1 : total.share;
    phases.hidden = false;
    phases.replaceChildren();
    legend.replaceChildren();
    timeline.legendKey = "";
    Object.assign(canvas.style, { left: "0px", width: `${width}px` });
    silhouette(canvas, width, height, total.live, share, top, timeline.colour("--mv-ink-3"));
    silhouette(overview, overview.clientWidth, OVERVIEW, total.live, share, (most * OVERVIEW) / (OVERVIEW - 6), timeline.colour("--mv-ink-3"), 1);
    const yOf = (bytes) => height * (1 - bytes / top);
    const parts = [];
    // Before the first bytes there is nothing to measure.
    for (const { value, text } of most > 1 ? byteTicks(top) : []) {
      parts.push(shape("line", { x1: 0, x2: width, y1: yOf(value), y2: yOf(value), class: "mvt-grid" }));
      parts.push(shape("text", { x: -8, y: yOf(value) + 4, class: "mvt-tick mvt-left" }, text));
    }
    parts.push(shape("line", { x1: 0, x2: width, y1: height, y2: height, class: "mvt-tickline" }));
    if (total.reserved) {
      const step = width / total.reserved.length;
      const path = total.reserved.map((bytes, i) => `${i ? "H" : "M0,"}${i ? (i * step).toFixed(1) : ""}${i ? "V" : ""}${yOf(bytes).toFixed(1)}`).join("");
      parts.push(shape("path", { d: `${path}H${width}`, class: "mvt-reserved" }));
      parts.push(shape("text", { x: width + 8, y: yOf(total.peak_bytes) + 1, class: "mvt-figure mvt-right" }, bytesText(total.peak_bytes)));
      parts.push(shape("text", { x: width + 8, y: yOf(total.peak_bytes) + 15, class: "mvt-tick mvt-right" }, "live, peak"));
    }
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.replaceChildren(...parts);
    root.dataset.total = total.reserved ? "whole" : most > 1 ? "part" : "none";
  }

  function silhouette(canvas, width, height, values, share, top, colour, shade = SHADE) {
    const scale = Math.min(window.devicePixelRatio || 1, 2);
    Object.assign(canvas, { width: Math.round(width * scale), height: Math.round(height * scale) });
    const pen = canvas.getContext("2d");
    pen.scale(scale, scale);
    pen.fillStyle = colour;
    pen.globalAlpha = shade;
    const wide = Math.max(Math.round(width * share), 1);
    pen.beginPath();
    pen.moveTo(0, height);
    for (let x = 0; x < wide; x++) {
      let most = 0;
      const end = Math.max(Math.ceil(((x + 1) * values.length) / wide), 1);
      for (let i = Math.floor((x * values.length) / wide); i < end; i++) most = Math.max(most, values[i]);
      const y = height * (1 - most / top);
      pen.lineTo(x, y);
      pen.lineTo(x + 1, y);
    }
    pen.lineTo(wide, height);
    pen.fill();
  }

  globalThis.memvizTotal = drawTotal;
})();
