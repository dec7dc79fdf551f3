// @ts-check
// How fast the line to the server is, by what was sent, and whether packing pays on it. No DOM in this file.

/** Bytes a second. Packing a large file, and reading it there, is hardly faster. */
const FAST = 8e6;
/** Below this a clock says nothing. */
const LEAST_MS = 1;
/** Of the whole time: an answer may have been slow for once, and does not explain all. */
const LEAST_SHARE = 0.25;
const PROBES = 2;
/** So many last measures count, all together: a busy machine is now and then slow on any line, and a small part may
 * slip through a slow one. */
const REMEMBERED = 3;
const LEAST_PROBE = 48 << 10;
const MOST_PROBE = 512 << 10;
const SHARE_OF_FILE = 96;

/** Bytes sent as they are, for a measure: little of any file, and the more the longer a wrong answer would last.
 * @param {number} size of the file */
export const probeOf = (size) => Math.min(Math.max(Math.floor(size / SHARE_OF_FILE), LEAST_PROBE), MOST_PROBE);

export class Line {
  /** @type {{ bytes: number, ms: number }[]} */
  last = [];
  /** All that were ever taken. */
  count = 0;

  /** @param {number} answerMs what an answer takes that has nothing to carry */
  constructor(answerMs) {
    this.answerMs = answerMs;
  }

  /** Bytes a second; 0 is not known. A busy machine makes a line look slow and never fast, so of the first two the
   * better counts. */
  get rate() {
    const [bytes, ms] = [this.last.map((part) => part.bytes), this.last.map((part) => part.ms)];
    if (this.count <= PROBES) return Math.max(0, ...bytes.map((size, i) => (1000 * size) / ms[i]));
    return (1000 * bytes.reduce((sum, size) => sum + size, 0)) / ms.reduce((sum, part) => sum + part, 0);
  }

  /** One slow measure is none yet. */
  get isKnown() {
    return this.isFast || this.last.length >= PROBES;
  }

  /** Packing costs more there than it saves. */
  get isFast() {
    return this.rate >= FAST;
  }

  /** @param {number} bytes @param {number} ms until it was answered */
  sent(bytes, ms) {
    this.count++;
    // A small part says more of the answer's way than of the line.
    if (bytes < LEAST_PROBE / 2 && this.isKnown) return;
    this.answerMs = Math.min(this.answerMs, ms);
    const own = Math.max(ms - this.answerMs, LEAST_SHARE * ms, LEAST_MS);
    this.last = [...this.last, { bytes, ms: own }].slice(-REMEMBERED);
  }
}
