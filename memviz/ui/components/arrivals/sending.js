// @ts-check
// A file's bytes on their way: part by part, one request at a time. The first are sent as they are: how long that takes
// decides whether the others are packed, and so on with each that follows. No DOM in this file.
import { deflate } from "./deflate.js";

// -- how fast the line to the server is, by what was sent, and whether packing pays on it

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
  /** @type {{ bytes: number, ms: number }[]} */ last = [];
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

// -- sending

const MOST_READY = 16 << 20;
const LEAST_SENT = 384 << 10;
/** Of the file, packed at a time. */
const PIECE = 512 << 10;
const MOST_PLAIN = 64 << 20;

/** Lets the worker's other tasks go first: answers are heard, and the next request sets out, while a file is packed. */
const turn = new MessageChannel();
/** @type {(() => void)[]} */ const turns = [];
turn.port1.onmessage = () => turns.shift()?.();
const othersFirst = () =>
  /** @type {Promise<void>} */ (
    new Promise((done) => {
      turns.push(done);
      turn.port2.postMessage(0);
    })
  );

/** @typedef {{ body: Blob, isPlain: boolean, isLast: boolean }} Part */

/** Packed parts, made ready while a request is on its way. */
class Packing {
  /** @type {Uint8Array<ArrayBuffer>[]} */ parts = [];
  size = 0;
  isOver = false;
  wake = () => {};

  /** @param {File} file @param {number} at where it begins @param {() => boolean} isWanted */
  constructor(file, at, isWanted) {
    this.file = file;
    this.at = at;
    this.isWanted = isWanted;
    this.making = this.make();
  }

  get isWhole() {
    return this.at === this.file.size;
  }

  async make() {
    while (!this.isWhole && this.isWanted()) {
      const end = Math.min(this.file.size, this.at + PIECE);
      const part = deflate(new Uint8Array(await this.file.slice(this.at, end).arrayBuffer()), end === this.file.size);
      this.at = end;
      this.parts.push(part);
      this.size += part.length;
      this.wake();
      await othersFirst();
      while (this.size > MOST_READY && this.isWanted()) await new Promise((next) => setTimeout(next, 5));
    }
    this.isOver = true;
  }

  /** What is ready, once that is worth a request; all, once no more is wanted. @returns {Promise<Part>} */
  async take() {
    const enough = () => this.size >= LEAST_SENT && this.isWanted();
    while (!enough() && !this.isOver) await Promise.race([new Promise((done) => (this.wake = () => done(null))), this.making]);
    const body = new Blob(this.parts);
    [this.parts, this.size] = [[], 0];
    return { body, isPlain: false, isLast: this.isWhole };
  }
}

export class Sending {
  /** How much of the file is sent as it is, or packed. */
  at = 0;
  /** @type {Packing | null} */ packing = null;

  /** @param {File} file @param {boolean} mayPack @param {Line} line @param {() => boolean} isOver */
  constructor(file, mayPack, line, isOver) {
    this.file = file;
    this.mayPack = mayPack;
    this.line = line;
    this.isOver = isOver;
  }

  /** @returns {Promise<Part>} */
  next() {
    if (!this.mayPack) return this.plain(this.file.size);
    if (this.packing) return this.packed(this.packing);
    if (!this.line.isKnown) return this.plain(probeOf(this.file.size));
    // No more than a second's worth: a line may be slower than it seemed.
    if (this.line.isFast) return this.plain(Math.min(MOST_PLAIN, this.line.rate));
    this.packing = new Packing(this.file, this.at, () => !this.line.isFast && !this.isOver());
    return this.packed(this.packing);
  }

  /** A stretch of the file itself: the browser sends it without ever showing it to us.
   * @param {number} size @returns {Promise<Part>} */
  async plain(size) {
    const begin = this.at;
    this.at = Math.min(this.file.size, begin + Math.ceil(size));
    return { body: this.file.slice(begin, this.at), isPlain: true, isLast: this.at === this.file.size };
  }

  /** @param {Packing} packing @returns {Promise<Part>} */
  async packed(packing) {
    const part = await packing.take();
    if (packing.isOver && !part.isLast) {
      // The line is fast now.
      [this.at, this.packing] = [packing.at, null];
    }
    return part;
  }

  /** @param {(part: Part, number: number) => Promise<any>} post resolves when it is answered */
  async run(post) {
    for (let number = 0; ; number++) {
      const part = await this.next();
      if (this.isOver()) return;
      const begun = performance.now();
      await post(part, number);
      this.line.sent(part.body.size, performance.now() - begun);
      if (part.isLast) return;
    }
  }
}

// -- what the server says meanwhile: messages one behind the other in one answer, each the length of its header, the header,
// and the bytes that this one counts

const LENGTH = 4;

/** @typedef {{ kind: string, bytes: number, [more: string]: any }} Message */

/** The whole messages at the beginning; what is left over; and how long that has to be before the next one is whole.
 * @param {Uint8Array} bytes @returns {{ messages: { header: Message, body: Uint8Array<ArrayBuffer> }[], rest: Uint8Array, needed: number }} */
export function messagesIn(bytes) {
  const messages = [];
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  for (let at = 0; ; ) {
    const left = bytes.length - at;
    const rest = bytes.subarray(at);
    if (left < LENGTH) return { messages, rest, needed: LENGTH };
    const begin = LENGTH + view.getUint32(at, true);
    if (left < begin) return { messages, rest, needed: begin };
    const header = /** @type {Message} */ (JSON.parse(new TextDecoder().decode(rest.subarray(LENGTH, begin))));
    const end = begin + header.bytes;
    if (left < end) return { messages, rest, needed: end };
    messages.push({ header, body: /** @type {Uint8Array<ArrayBuffer>} */ (rest.subarray(begin, end)) });
    at += end;
  }
}

/** @param {Uint8Array[]} pieces */
export function joined(pieces) {
  const whole = new Uint8Array(pieces.reduce((sum, piece) => sum + piece.length, 0));
  let at = 0;
  for (const piece of pieces) {
    whole.set(piece, at);
    at += piece.length;
  }
  return whole;
}
