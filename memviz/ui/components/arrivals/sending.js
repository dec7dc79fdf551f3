// @ts-check
// A file's bytes on their way: part by part, one request at a time. The first are sent as they are: how long that takes
// decides whether the others are packed, and so on with each that follows. No DOM in this file.
import { deflate } from "./deflate.js";
import { probeOf } from "./line.js";

const MOST_READY = 16 << 20;
const LEAST_SENT = 384 << 10;
/** Of the file, packed at a time. */
const PIECE = 512 << 10;
const MOST_PLAIN = 64 << 20;

/** Lets the worker's other tasks go first: answers are heard, and the next request sets out, while a file is packed. */
const turn = new MessageChannel();
/** @type {(() => void)[]} */
const turns = [];
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
  /** @type {Uint8Array<ArrayBuffer>[]} */
  parts = [];
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

  /** What is ready, once that is worth a request; all, once no more is wanted.
   * @returns {Promise<Part>} */
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
  /** @type {Packing | null} */
  packing = null;

  /** @param {File} file @param {boolean} mayPack @param {import("./line.js").Line} line @param {() => boolean} isOver */
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
