// The memory timeline as pixels, in the browser. memviz/figures/raster.py is the same in Python and says why;
// tests/browser/test_raster.py holds one to the other, pixel by pixel. No DOM in this file.
(() => {
  "use strict";
  const NOTHING = -1;
  const SHADES = 5;
  const HASH = 0x9e3779b1;
  const ROW_BLOCK = 64;
  const STRIP = 16;
  const INSTANT_BLOCK = 256;
  const BYTES = { uint8: 1, uint32: 4 };

  function bytesOf(base64) {
    const raw = atob(base64);
    const bytes = new Uint8Array(raw.length);
    for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
    return bytes;
  }

  /** Columns of a piece made by packed_timeline.py, by name. */
  async function unpack(header, buffer) {
    const stream = new Blob([buffer]).stream().pipeThrough(new DecompressionStream("deflate"));
    const raw = new Uint8Array(await new Response(stream).arrayBuffer());
    const columns = {};
    let at = 0;
    for (const [name, kind, count] of header.columns) {
      columns[name] = kind === "uint8" ? raw.slice(at, at + count) : words(raw, at, count);
      at += BYTES[kind] * count;
    }
    return columns;
  }

  /** All lowest bytes come first, then all second ones, and so on. */
  function words(raw, at, count) {
    const made = new Uint32Array(count);
    const [b, c, d] = [at + count, at + 2 * count, at + 3 * count];
    for (let i = 0; i < count; i++) {
      made[i] = raw[at + i] | (raw[b + i] << 8) | (raw[c + i] << 16) | (raw[d + i] << 24);
    }
    return made;
  }

  /** A piece as it is drawn from, and the memory of it that another thread can be given instead of a copy. */
  async function ready(piece, header, buffer) {
    const columns = await unpack(header, buffer);
    if (piece !== "timeline") return { made: { header, columns }, owned: Object.values(columns).map((each) => each.buffer) };
    const spans = new Spans(columns, header.events);
    return { made: { header, spans }, owned: Object.values(spans).filter(ArrayBuffer.isView).map((each) => each.buffer) };
  }

  function wide(low, high) {
    const made = new Float64Array(low.length);
    for (let i = 0; i < low.length; i++) made[i] = low[i] + high[i] * 4294967296;
    return made;
  }

  function summed(steps) {
    let sum = 0;
    for (let i = 0; i < steps.length; i++) steps[i] = sum += steps[i];
    return steps;
  }

  /** Allocations by start: live at instants start <= i < end. Instant 0 is before the first event. */
  class Spans {
    constructor(columns, events) {
      const start = summed(columns.start);
      const end = columns.span;
      for (let i = 0; i < end.length; i++) end[i] += start[i];
      this.count = start.length;
      this.instants = events + 1;
      this.start = start;
      this.end = end;
      this.size = wide(columns.size_low, columns.size_high);
      this.live = this._live();
      this.reservedAt = summed(columns.reserved_at);
      this.reserved = wide(columns.reserved_low, columns.reserved_high);
      this._blockEnds = this._largestEnds();
      this._blockPeaks = this._largestLive();
      this.peak = this.largestIn(0, this.instants);
    }

    /** From what another thread has made: only its columns come across. */
    static of(made) {
      return Object.assign(Object.create(Spans.prototype), made);
    }

    _live() {
      const live = new Float64Array(this.instants);
      const { start, end, size, instants } = this;
      for (let i = 0; i < this.count; i++) {
        live[start[i]] += size[i];
        if (end[i] < instants) live[end[i]] -= size[i];
      }
      for (let i = 1; i < instants; i++) live[i] += live[i - 1];
      return live;
    }

    _largestEnds() {
      const made = new Uint32Array(Math.ceil(this.count / ROW_BLOCK));
      for (let i = 0; i < this.count; i++) {
        const block = (i / ROW_BLOCK) | 0;
        if (this.end[i] > made[block]) made[block] = this.end[i];
      }
      return made;
    }

    _largestLive() {
      const made = new Float64Array(Math.ceil(this.instants / INSTANT_BLOCK)).fill(-1);
      for (let i = 0; i < this.instants; i++) {
        const block = (i / INSTANT_BLOCK) | 0;
        if (this.live[i] > made[block]) made[block] = this.live[i];
      }
      return made;
    }

    /** First instant with most live bytes, from begin up to, not with, end. */
    largestIn(begin, end) {
      const { live, _blockPeaks: peaks } = this;
      let best = begin;
      let i = begin;
      while (i < end) {
        const block = (i / INSTANT_BLOCK) | 0;
        const stop = (block + 1) * INSTANT_BLOCK;
        if (peaks[block] <= live[best]) {
          i = stop;
          continue;
        }
        for (const upto = Math.min(stop, end); i < upto; i++) if (live[i] > live[best]) best = i;
      }
      return best;
    }

    reservedUpTo(instant) {
      const at = lastNotAfter(this.reservedAt, instant);
      return at < 0 ? 0 : this.reserved[at];
    }

    /** Calls back with every row that starts in (after, upto] and is live at upto. */
    eachBegun(after, upto, call) {
      const { start, end, count, _blockEnds: ends } = this;
      let row = after < 0 ? 0 : lastNotAfter(start, after) + 1;
      while (row < count && start[row] <= upto) {
        if (row % ROW_BLOCK === 0 && ends[row / ROW_BLOCK] <= upto) {
          row += ROW_BLOCK;
          continue;
        }
        if (end[row] > upto) call(row);
        row++;
      }
    }

    /** Live rows from the bottom up: by group and then age, or by age alone. */
    stackAt(instant, group, groups, byGroup) {
      const stack = new Stack(byGroup ? groups : 1);
      stack.moveTo(this, group, instant, byGroup);
      return stack;
    }
  }

  /** Index of the last value not after the wanted one in an ascending array; -1 if all are. */
  function lastNotAfter(values, wanted) {
    let low = 0;
    let high = values.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (values[middle] <= wanted) low = middle + 1;
      else high = middle;
    }
    return low - 1;
  }

  /**
   * The live rows of one instant, carried on to the next: whatever ended drops out, whatever began comes on top.
   * Ends and sizes lie beside the rows, in the order in which they are walked: looking them up by row would miss
   * the processor's cache at every step.
   */
  class Stack {
    constructor(groups) {
      this.lists = Array.from({ length: groups }, () => new Int32Array(64));
      this.ends = Array.from({ length: groups }, () => new Uint32Array(64));
      this.sizes = Array.from({ length: groups }, () => new Float64Array(64));
      this.counts = new Int32Array(groups);
      this.instant = -1;
    }

    moveTo(spans, group, instant, byGroup) {
      if (instant === this.instant) return;
      for (let g = 0; g < this.lists.length; g++) this._drop(g, instant);
      spans.eachBegun(this.instant, instant, (row) => this._push(byGroup ? group[row] : 0, row, spans));
      this.instant = instant;
    }

    _drop(g, instant) {
      const [list, ends, sizes, count] = [this.lists[g], this.ends[g], this.sizes[g], this.counts[g]];
      let kept = 0;
      while (kept < count && ends[kept] > instant) kept++;
      for (let i = kept; i < count; i++) {
        if (ends[i] <= instant) continue;
        list[kept] = list[i];
        ends[kept] = ends[i];
        sizes[kept++] = sizes[i];
      }
      this.counts[g] = kept;
    }

    _push(g, row, spans) {
      const count = this.counts[g];
      if (count === this.lists[g].length) this._grow(g);
      this.lists[g][count] = row;
      this.ends[g][count] = spans.end[row];
      this.sizes[g][count] = spans.size[row];
      this.counts[g] = count + 1;
    }

    _grow(g) {
      for (const kept of [this.lists, this.ends, this.sizes]) {
        const larger = new kept[g].constructor(2 * kept[g].length);
        larger.set(kept[g]);
        kept[g] = larger;
      }
    }

    *[Symbol.iterator]() {
      for (let g = 0; g < this.lists.length; g++) {
        for (let i = 0; i < this.counts[g]; i++) yield this.lists[g][i];
      }
    }
  }

  /** The instant each column shows: the first of its range with most live bytes. */
  function columnInstants(spans, view) {
    const made = new Int32Array(view.columns);
    const step = (view.last - view.first) / view.columns;
    const last = spans.instants - 1;
    for (let c = 0; c < view.columns; c++) {
      const begin = Math.min(Math.max(Math.floor(view.first + c * step), 0), last);
      const next = Math.max(Math.floor(view.first + (c + 1) * step), begin + 1);
      made[c] = spans.largestIn(begin, Math.min(Math.max(next, 1), last + 1));
    }
    return made;
  }

  /** The same for equal spans of time; `times` has one entry per event. A column without events keeps the state before. */
  function columnInstantsByTime(spans, times, view) {
    const made = new Int32Array(view.columns);
    const step = (view.last - view.first) / view.columns;
    let begin = lastNotAfter(times, view.first) + 1;
    for (let c = 0; c < view.columns; c++) {
      const end = lastNotAfter(times, view.first + (c + 1) * step) + 1;
      made[c] = spans.largestIn(begin, Math.max(end, begin) + 1);
      begin = end;
    }
    return made;
  }

  function centres(view) {
    const made = new Float64Array(view.rows);
    for (let r = 0; r < view.rows; r++) made[r] = (r + 0.5) * (view.top / view.rows);
    return made;
  }

  function shadeOf(row) {
    return (Math.imul(row, HASH) >>> 0) % SHADES;
  }

  /**
   * Fills grid (rows from the bottom, NOTHING above the stack) and pixels (0xAABBGGRR, top row first).
   * colours: { group, groups, palette, dimmed, page }; palettes are flat [group][shade][edge]. lit: rows that keep
   * their colour while the others are dimmed, or null.
   */
  function paint(spans, instants, view, colours, { byGroup = true, lit = null, grid, pixels }) {
    const { columns, rows } = view;
    const middle = centres(view);
    const stack = new Stack(byGroup ? colours.groups : 1);
    // Columns are painted upright into a strip and laid down side by side: writing each of a column's pixels to
    // its own line of the picture would miss the processor's cache every time.
    const strip = { grid: new Int32Array(STRIP * rows), pixels: new Uint32Array(STRIP * rows) };
    for (let first = 0; first < columns; first += STRIP) {
      const wide = Math.min(STRIP, columns - first);
      strip.grid.fill(NOTHING);
      strip.pixels.fill(colours.page);
      for (let k = 0; k < wide; k++) {
        stack.moveTo(spans, colours.group, instants[first + k], byGroup);
        paintColumn(stack, middle, colours, lit, strip, k * rows);
      }
      layDown(strip, first, wide, view, grid, pixels);
    }
  }

  /** One column from the bottom up, at `base` of the strip. */
  function paintColumn(stack, middle, { group, palette, dimmed }, lit, strip, base) {
    const rows = middle.length;
    let sum = 0;
    let r = 0;
    for (let g = 0; g < stack.lists.length && r < rows; g++) {
      const list = stack.lists[g];
      const sizes = stack.sizes[g];
      for (let i = 0, n = stack.counts[g]; i < n && r < rows; i++) {
        sum += sizes[i];
        if (middle[r] >= sum) continue;
        const row = list[i];
        const table = lit === null || lit[row] ? palette : dimmed;
        const colour = (group[row] * SHADES + shadeOf(row)) * 3;
        const from = r;
        for (; r < rows && middle[r] < sum; r++) {
          strip.grid[base + r] = row;
          strip.pixels[base + r] = table[colour];
        }
        const high = r - from;
        // The uppermost pixel of an allocation over 2 pixels high is its edge, fainter up to 4.
        if (high > 2) strip.pixels[base + r - 1] = table[colour + (high > 4 ? 2 : 1)];
      }
    }
  }

  function layDown(strip, first, wide, { columns, rows }, grid, pixels) {
    for (let r = 0; r < rows; r++) {
      const below = r * columns + first;
      const above = (rows - 1 - r) * columns + first;
      for (let k = 0; k < wide; k++) {
        grid[below + k] = strip.grid[k * rows + r];
        pixels[above + k] = strip.pixels[k * rows + r];
      }
    }
  }

  globalThis.memvizRaster = { NOTHING, SHADES, Spans, bytesOf, columnInstants, columnInstantsByTime, lastNotAfter, paint, ready, summed, unpack, wide };
})();
