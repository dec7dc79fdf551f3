// @ts-check
// One file, in a thread of its own: read, packed and sent part by part, while what the server makes of it is heard
// and unpacked. The page's own thread only draws. Told {file, address}; tells what the server tells, a `piece` made
// ready to draw. Told "stop", it stops. Told {unpack}, it only unpacks a piece.
import { bytesOf, ready } from "../memory_timeline/packed.js";
import { deflate, stored } from "./deflate.js";
import { Line, probeOf } from "./line.js";
import { joined, messagesIn } from "./stream.js";

const GZIP = 0x1f8b;
const MOST_READY = 16 << 20;
const LEAST_SENT = 384 << 10;
/** Of the file, packed at a time; and sent as it is. */
const PIECE = 512 << 10;
const LARGE_PIECE = 4 << 20;
const stopped = new AbortController();

/** @param {any} message @param {Transferable[]} [owned] */
const tell = (message, owned = []) => /** @type {any} */ (globalThis).postMessage(message, owned);

/** By the server, with a reason of ours. */
class Refused extends Error {}

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

/** @param {string} address @param {RequestInit} options */
async function ask(address, options) {
  const answer = await fetch(address, { ...options, signal: stopped.signal });
  if (answer.ok) return answer;
  const said = await answer.json().catch(() => null);
  // Without a reason of ours nobody of ours answered: the page can still try the way of old.
  if (!said || !said.reason || answer.status === 401) throw new Error(`status ${answer.status}`);
  throw new Refused(said.reason);
}

/** @param {File} file @param {string} address */
async function receive(file, address) {
  const two = new DataView(await file.slice(0, 2).arrayBuffer());
  const isPacked = !(two.byteLength === 2 && two.getUint16(0) === GZIP);
  const wish = JSON.stringify({ name: file.name, size: file.size, packed: isPacked });
  const asked = performance.now();
  const begun = await ask(address, { method: "POST", headers: { "content-type": "application/json" }, body: wish });
  const line = new Line(performance.now() - asked);
  const own = `${address}/${(await begun.json()).ticket}`;
  stopped.signal.addEventListener("abort", () => fetch(own, { method: "DELETE", keepalive: true }).catch(() => {}));
  tell({ kind: "begun" });
  let isOver = false;
  const heard = listen(own).finally(() => (isOver = true));
  // A file may be refused before it has come as a whole: then nobody takes the rest.
  const sent = send(file, own, isPacked, line, () => isOver).catch((fault) => isOver || Promise.reject(fault));
  await Promise.all([heard, sent]);
}

/** While one request is on its way the next parts are made ready, and go together. The first are sent as they are: how
 * long that takes decides whether the others are packed, and so on with each that follows.
 * @param {File} file @param {string} own @param {boolean} isPacked @param {Line} line @param {() => boolean} isOver */
async function send(file, own, isPacked, line, isOver) {
  /** @type {BlobPart[]} */
  let parts = [];
  let size = 0;
  let isWhole = false;
  let wake = () => {};
  const add = (/** @type {BlobPart[]} */ more, /** @type {number} */ bytes, /** @type {boolean} */ isLast) => {
    parts.push(...more);
    size += bytes;
    isWhole = isLast;
    wake();
  };
  const make = async () => {
    if (!isPacked) return add([file], file.size, true);
    for (let at = 0; !isWhole; ) {
      const [isProbe, before] = [!line.isKnown, line.count];
      const isAsItIs = isProbe || line.isFast;
      const end = Math.min(file.size, at + (isProbe ? probeOf(file.size) : isAsItIs ? LARGE_PIECE : PIECE));
      const piece = new Uint8Array(await file.slice(at, end).arrayBuffer());
      at = end;
      const part = (isAsItIs ? stored : deflate)(piece, end === file.size);
      add([part], part.length, end === file.size);
      await othersFirst();
      // As they are no more than a second's worth: a line may be slower than it seemed.
      const most = isAsItIs ? Math.min(MOST_READY, line.rate) : MOST_READY;
      while ((size > most || (isProbe && line.count === before)) && !isOver() && !isWhole) await new Promise((next) => setTimeout(next, 5));
      if (isOver()) return;
    }
  };
  const making = make();
  for (let number = 0; ; number++) {
    while (!isWhole && size < (line.isKnown ? LEAST_SENT : 1)) await Promise.race([new Promise((done) => (wake = () => done(null))), making]);
    if (isOver()) return;
    const isLast = isWhole;
    const headers = { "content-type": "application/octet-stream", "memviz-part": String(number), "memviz-last": isLast ? "1" : "0" };
    const body = new Blob(parts);
    [parts, size] = [[], 0];
    const begun = performance.now();
    await ask(own, { method: "POST", headers, body });
    line.sent(body.size, performance.now() - begun);
    if (isLast) return;
  }
}

/** @param {string} own */
async function listen(own) {
  const reader = /** @type {ReadableStream<Uint8Array>} */ ((await ask(own, {})).body).getReader();
  /** @type {Uint8Array[]} */
  let pieces = [];
  let [have, needed] = [0, 0];
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    pieces.push(value);
    have += value.length;
    if (have < needed) continue;
    const found = messagesIn(joined(pieces));
    for (const { header, body } of found.messages) await pass(header, body);
    [pieces, have, needed] = [[found.rest], found.rest.length, found.needed];
  }
}

/** @param {import("./stream.js").Message} message @param {Uint8Array<ArrayBuffer>} body */
async function pass(message, body) {
  if (message.kind !== "piece") return tell(message);
  const { made, owned } = await ready(message.piece, /** @type {any} */ (message.header), body);
  tell({ kind: "piece", key: message.key, piece: message.piece, made }, owned);
}

globalThis.onmessage = (/** @type {MessageEvent} */ { data }) => {
  if (data === "stop") return stopped.abort();
  if (data.unpack) {
    const [piece, header, body] = data.unpack;
    return ready(piece, header, bytesOf(body)).then(({ made, owned }) => tell({ made }, owned), (fault) => tell({ fault: String(fault) }));
  }
  receive(data.file, data.address).then(
    () => tell({ kind: "ended" }),
    (fault) => tell(fault instanceof Refused ? { kind: "refused", name: data.file.name, reason: fault.message } : { kind: "failed", words: String(fault) }),
  );
};
