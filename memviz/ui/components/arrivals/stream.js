// @ts-check
// What the server says of a file while it comes: messages one behind the other in one answer, each the length of its
// header, the header, and the bytes that this one counts. No DOM in this file.

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
