// @ts-check
// Allocations and their bytes at each instant, and the stack of those that are live. No DOM in this file.

const ROW_BLOCK = 64;
const INSTANT_BLOCK = 256;

/** @param {Uint32Array} low @param {Uint32Array} high */
export function wide(low, high) {
  const made = new Float64Array(low.length);
  for (let i = 0; i < low.length; i++) made[i] = low[i] + high[i] * 4294967296;
  return made;
}

/** Each the sum of all up to it, in place.
 * @template {Uint32Array | Float64Array} Steps
 * @param {Steps} steps */
export function summed(steps) {
  let sum = 0;
  for (let i = 0; i < steps.length; i++) steps[i] = sum += steps[i];
  return steps;
}

/** Allocations by start: live at instants start <= i < end. Instant 0 is before the first event. */
export class Spans {
  /** @param {Record<string, any>} columns @param {number} events */
  constructor(columns, events) {
    /** @type {Uint32Array} */ const start = summed(columns.start);
    /** @type {Uint32Array} */ const end = columns.span;
    for (let i = 0; i < end.length; i++) end[i] += start[i];
    this.count = start.length;
    this.instants = events + 1;
    this.start = start;
    this.end = end;
    this.size = wide(columns.size_low, columns.size_high);
    this.live = new Float64Array(this.instants);
    for (let i = 0; i < this.count; i++) {
      this.live[start[i]] += this.size[i];
      if (end[i] < this.instants) this.live[end[i]] -= this.size[i];
    }
    summed(this.live);
    /** @type {Uint32Array} */ this.reservedAt = summed(columns.reserved_at);
    this.reserved = wide(columns.reserved_low, columns.reserved_high);
    this._blockEnds = blockMaxima(this.end, ROW_BLOCK);
    this._blockPeaks = blockMaxima(this.live, INSTANT_BLOCK);
    this.peak = this.largestIn(0, this.instants);
  }

  /** From what another thread has made: only its columns come across. @param {any} made @returns {Spans} */
  static of(made) {
    return Object.assign(Object.create(Spans.prototype), made);
  }

  /** First instant with most live bytes, from begin up to, not with, end.
   * @param {number} begin @param {number} end */
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

  /** @param {number} instant */
  reservedUpTo(instant) {
    const at = lastNotAfter(this.reservedAt, instant);
    return at < 0 ? 0 : this.reserved[at];
  }

  /** The first instant at which most is reserved. @returns {{ bytes: number, instant: number }} */
  reservedPeak() {
    const { reserved, reservedAt } = this;
    let row = 0;
    for (let i = 1; i < reserved.length; i++) if (reserved[i] > reserved[row]) row = i;
    return { bytes: reserved[row] || 0, instant: reservedAt[row] || 0 };
  }

  /** Calls back with every row that starts in (after, upto] and is live at upto.
   * @param {number} after @param {number} upto @param {(row: number) => void} call */
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
}

/** @param {Uint32Array | Float64Array} values @param {number} length of a block */
function blockMaxima(values, length) {
  const made = new Float64Array(Math.ceil(values.length / length)).fill(-1);
  for (let i = 0; i < values.length; i++) {
    const block = (i / length) | 0;
    if (values[i] > made[block]) made[block] = values[i];
  }
  return made;
}

/** Index of the last value not after the wanted one among ascending values; one before them if all are.
 * @param {ArrayLike<number>} values @param {number} wanted @param {number} [from] @param {number} [end] */
export function lastNotAfter(values, wanted, from = 0, end = values.length) {
  let [low, high] = [from, end];
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
export class Stack {
  /** @param {number} groups */
  constructor(groups) {
    this.lists = Array.from({ length: groups }, () => new Int32Array(64));
    this.ends = Array.from({ length: groups }, () => new Uint32Array(64));
    this.sizes = Array.from({ length: groups }, () => new Float64Array(64));
    this.counts = new Int32Array(groups);
    this.instant = -1;
  }

  /** @param {Spans} spans @param {ArrayLike<number>} group @param {number} instant @param {boolean} byGroup */
  moveTo(spans, group, instant, byGroup) {
    if (instant === this.instant) return;
    for (let g = 0; g < this.lists.length; g++) this._drop(g, instant);
    spans.eachBegun(this.instant, instant, (row) => this._push(byGroup ? group[row] : 0, row, spans));
    this.instant = instant;
  }

  /** @param {number} g @param {number} instant */
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

  /** @param {number} g @param {number} row @param {Spans} spans */
  _push(g, row, spans) {
    const count = this.counts[g];
    for (const columns of [this.lists, this.ends, this.sizes]) if (count === columns[g].length) columns[g] = longer(columns[g]);
    this.lists[g][count] = row;
    this.ends[g][count] = spans.end[row];
    this.sizes[g][count] = spans.size[row];
    this.counts[g] = count + 1;
  }

  *[Symbol.iterator]() {
    for (let g = 0; g < this.lists.length; g++) {
      for (let i = 0; i < this.counts[g]; i++) yield this.lists[g][i];
    }
  }
}

/** @template {Int32Array | Uint32Array | Float64Array} Kept
 * @param {Kept} kept @returns {Kept} twice as long */
function longer(kept) {
  const made = new (/** @type {any} */ (kept.constructor))(2 * kept.length);
  made.set(kept);
  return made;
}
