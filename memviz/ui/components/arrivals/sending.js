// @ts-check
// A file's bytes on their way: part by part, one request at a time. The first are sent as they are: how long that takes
// decides whether the others are packed. No DOM in this file.

// -- how fast the line to the server is, by what was sent, and whether packing pays on it

/** Bytes a second. Packing a large file, and reading it there, is hardly faster. */
const FAST = 8e6;
/** Below this a clock says nothing. */
const LEAST_MS = 1;
/** Of the whole time: an answer may have been slow for once, and does not explain all. */
const LEAST_SHARE = 0.25;
const PROBES = 2;
/** So many last measures count, all together: a busy machine is now and then slow on any line. */
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

  /** @param {number} answerMs what an answer takes that has nothing to carry @param {number} [known] rate that it had before */
  constructor(answerMs, known = 0) {
    this.answerMs = answerMs;
    this.known = known;
  }

  /** Bytes a second; 0 is not known. A busy machine makes a line look slow and never fast, so of the first two the
   * better counts. */
  get rate() {
    const [bytes, ms] = [this.last.map((part) => part.bytes), this.last.map((part) => part.ms)];
    if (this.count <= PROBES) return Math.max(this.known, ...bytes.map((size, i) => (1000 * size) / ms[i]));
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
    this.answerMs = Math.min(this.answerMs, ms);
    const own = Math.max(ms - this.answerMs, LEAST_SHARE * ms, LEAST_MS);
    this.last = [...this.last, { bytes, ms: own }].slice(-REMEMBERED);
  }
}

// -- sending

const LEAST_SENT = 384 << 10;
const MOST_PLAIN = 64 << 20;

/** @typedef {{ body: Blob, isPlain: boolean, isLast: boolean }} Part */

/** The file from there on, packed: one stream, whose pieces are joined until they are worth a request.
 * @param {File} file @param {number} at @returns {AsyncGenerator<Part, void>} */
async function* packed(file, at) {
  const reader = file.slice(at).stream().pipeThrough(new CompressionStream("deflate-raw")).getReader();
  /** @type {Uint8Array<ArrayBuffer>[]} */ let pieces = [];
  let size = 0;
  for (let isLast = false; !isLast; ) {
    const { done, value } = await reader.read();
    isLast = done;
    if (value) size += pieces.push(value) && value.length;
    if (!isLast && size < LEAST_SENT) continue;
    yield { body: new Blob(pieces), isPlain: false, isLast };
    [pieces, size] = [[], 0];
  }
}

/** As it is while the line is fast or not known, and packed from the moment on that it proves slow. `post` resolves when
 * a part is answered.
 * @param {File} file @param {boolean} mayPack @param {Line} line @param {() => boolean} isOver
 * @param {(part: Part, number: number) => Promise<any>} post */
export async function send(file, mayPack, line, isOver, post) {
  let [number, at] = [0, 0];
  while (!mayPack || !line.isKnown || line.isFast) {
    // No more than a second's worth: a line may be slower than it seemed.
    const size = !mayPack ? file.size : line.isFast ? Math.min(MOST_PLAIN, line.rate) : probeOf(file.size);
    const end = Math.min(file.size, at + Math.ceil(size));
    const begun = performance.now();
    // A stretch of the file itself: the browser sends it without ever showing it to us.
    await post({ body: file.slice(at, end), isPlain: true, isLast: end === file.size }, number++);
    line.sent(end - at, performance.now() - begun);
    at = end;
    if (at === file.size || isOver()) return;
  }
  const parts = packed(file, at);
  for (let next = parts.next(); ; ) {
    const { value: part } = await next;
    if (!part || isOver()) return;
    // The next one is packed while this one is on its way.
    next = parts.next();
    await post(part, number++);
  }
}

// -- what the server says meanwhile: messages one behind the other in one answer, each the length of its header, the header,
// and the bytes that this one counts

const LENGTH = 4;

/** @typedef {{ kind: string, bytes: number, [more: string]: any }} Message */

/** The whole messages at the beginning; what is left over; and how long that has to be before the next one is whole.
 * @param {Uint8Array<ArrayBuffer>} bytes @returns {{ messages: { header: Message, body: Uint8Array<ArrayBuffer> }[], rest: Uint8Array<ArrayBuffer>, needed: number }} */
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
    messages.push({ header, body: rest.subarray(begin, end) });
    at += end;
  }
}
