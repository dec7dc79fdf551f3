// @ts-check
// One file, in a thread of its own: read, packed and sent part by part, while what the server makes of it is heard
// and unpacked. The page's own thread only draws. Told {file, address, rate, isBeside}; tells what the server tells, a `piece` made
// ready to draw. Told "stop", it stops. Told {unpack}, it only unpacks a piece.
import { bytesOf, ready } from "../memory_timeline/packed.js";
import { Line, messagesIn, send } from "./sending.js";

const GZIP = 0x1f8b;
const stopped = new AbortController();

/** @param {any} message @param {Transferable[]} [owned] */
const tell = (message, owned = []) => /** @type {any} */ (globalThis).postMessage(message, owned);

const TOO_MANY = 429;
const ASKED_AGAIN_MS = 1000;
const PATIENCE_MS = 120_000;

/** Asks the server; where it refuses, the error has its reason and the answer's `status`.
 * @param {string} address @param {RequestInit} options */
async function ask(address, options) {
  const answer = await fetch(address, { ...options, signal: stopped.signal });
  if (answer.ok) return answer;
  const said = await answer.json().catch(() => null);
  // An answer without `reason` comes from a proxy between the page and its server.
  if (!said || !said.reason || answer.status === 401) throw new Error(`status ${answer.status}`);
  throw Object.assign(new Error(said.reason), { status: answer.status });
}

/** The server takes so many files at a time, and fewer of one address: a place is asked for until there is one. With how long
 * the answer that gave it took.
 * @param {string} address @param {RequestInit} options */
async function place(address, options) {
  const until = performance.now() + PATIENCE_MS;
  for (;;) {
    const asked = performance.now();
    try {
      const { ticket } = await (await ask(address, options)).json();
      return { ticket, took: performance.now() - asked };
    } catch (fault) {
      if (/** @type {any} */ (fault).status !== TOO_MANY || performance.now() > until) throw fault;
    }
    tell({ kind: "waits" });
    await new Promise((next) => setTimeout(next, ASKED_AGAIN_MS));
  }
}

/** @param {{ file: File, address: string, rate: number, isBeside: boolean }} asked `rate` is what the line has had before */
async function receive({ file, address, rate, isBeside }) {
  const two = new DataView(await file.slice(0, 2).arrayBuffer());
  const mayPack = !(two.byteLength === 2 && two.getUint16(0) === GZIP);
  const wish = JSON.stringify({ name: file.name, size: file.size, packed: mayPack, beside: isBeside });
  const { ticket, took } = await place(address, { method: "POST", headers: { "content-type": "application/json" }, body: wish });
  const line = new Line(took, rate);
  const own = `${address}/${ticket}`;
  stopped.signal.addEventListener("abort", () => fetch(own, { method: "DELETE", keepalive: true }).catch(() => {}));
  tell({ kind: "begun" });
  let isOver = false;
  const heard = listen(own).finally(() => (isOver = true));
  // A file may be refused before it has come as a whole: then nobody takes the rest.
  const sent = send(file, mayPack, line, () => isOver, (part, number) => post(own, part, number)).catch((fault) => isOver || Promise.reject(fault));
  await Promise.all([heard, sent.then(() => tell({ kind: "line", rate: line.rate }))]);
}

/** @param {string} own @param {import("./sending.js").Part} part @param {number} number */
function post(own, { body, isPlain, isLast }, number) {
  const headers = {
    "content-type": "application/octet-stream",
    "memviz-part": String(number),
    "memviz-plain": isPlain ? "1" : "0",
    "memviz-last": isLast ? "1" : "0",
  };
  return ask(own, { method: "POST", headers, body });
}

/** @param {string} own */
async function listen(own) {
  const reader = /** @type {ReadableStream<Uint8Array<ArrayBuffer>>} */ ((await ask(own, {})).body).getReader();
  /** @type {Uint8Array<ArrayBuffer>[]} */ let pieces = [];
  let [have, needed] = [0, 0];
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    pieces.push(value);
    have += value.length;
    if (have < needed) continue;
    const found = messagesIn(new Uint8Array(await new Blob(pieces).arrayBuffer()));
    for (const { header, body } of found.messages) await pass(header, body);
    [pieces, have, needed] = [[found.rest], found.rest.length, found.needed];
  }
}

/** @param {import("./sending.js").Message} message @param {Uint8Array<ArrayBuffer>} body */
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
  receive(data)
    .catch((fault) => tell(fault.status ? { kind: "refused", name: data.file.name, reason: fault.message } : { kind: "failed", words: String(fault) }))
    .then(() => tell({ kind: "ended" }));
};
