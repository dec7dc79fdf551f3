// One file, in a thread of its own: read, packed and sent part by part, while what the server makes of it is heard
// and unpacked. The page's own thread only draws. Told {file, address, packed}; tells what the server tells, a
// `piece` made ready to draw. Told "stop", it stops.
(() => {
  "use strict";
  const R = globalThis.memvizRaster;
  const GZIP = 0x1f8b;
  const MOST_READY = 16 << 20;
  const LEAST_SENT = 384 << 10;
  const stopped = new AbortController();
  const say = (message, owned = []) => globalThis.postMessage(message, owned);

  class Refused extends Error {}

  /** Lets the worker's other tasks go first: answers are heard, and the next request sets out, while a file is packed. */
  const turn = new MessageChannel();
  const turns = [];
  turn.port1.onmessage = () => turns.shift()();
  const others = () =>
    new Promise((done) => {
      turns.push(done);
      turn.port2.postMessage(0);
    });

  async function ask(address, options) {
    const answer = await fetch(address, { ...options, signal: stopped.signal });
    if (answer.ok) return answer;
    const said = await answer.json().catch(() => null);
    // Without a reason of ours nobody of ours answered: the page can still try the way of old.
    if (!said || !said.reason || answer.status === 401) throw new Error(`status ${answer.status}`);
    throw new Refused(said.reason);
  }

  async function receive(file, address) {
    const two = new DataView(await file.slice(0, 2).arrayBuffer());
    const packed = !(two.byteLength === 2 && two.getUint16(0) === GZIP);
    const begun = await ask(address, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ name: file.name, size: file.size, packed }) });
    const own = `${address}/${(await begun.json()).ticket}`;
    stopped.signal.addEventListener("abort", () => fetch(own, { method: "DELETE", keepalive: true }).catch(() => {}));
    say({ kind: "begun" });
    let told = false;
    const heard = listen(own).finally(() => (told = true));
    // A file may be refused before it has come as a whole: then nobody takes the rest.
    const sent = send(file, own, packed, () => told).catch((fault) => told || Promise.reject(fault));
    await Promise.all([heard, sent]);
  }

  /** While one request is on its way the next parts are made ready, and go together. */
  async function send(file, own, packed, isOver) {
    let ready = [];
    let size = 0;
    let made = false;
    let wake = () => {};
    const add = (part, last) => {
      ready.push(part);
      size += part.size || part.length || 0;
      made = last;
      wake();
    };
    const make = async () => {
      if (!packed) return add(file, true);
      for (const reader = file.stream().getReader(); !made; ) {
        const { done, value } = await reader.read();
        add(globalThis.memvizDeflate(done ? new Uint8Array(0) : value, done), done);
        await others();
        while (size > MOST_READY && !isOver()) await new Promise((next) => setTimeout(next, 5));
        if (isOver()) return;
      }
    };
    const making = make();
    for (let number = 0; ; number++) {
      while (!made && size < (number ? LEAST_SENT : 1)) await Promise.race([new Promise((done) => (wake = done)), making]);
      if (isOver()) return;
      const headers = { "content-type": "application/octet-stream", "memviz-part": String(number), "memviz-last": made ? "1" : "0" };
      const body = new Blob(ready);
      [ready, size] = [[], 0];
      await ask(own, { method: "POST", headers, body });
      if (headers["memviz-last"] === "1") return;
    }
  }

  async function listen(own) {
    const reader = (await ask(own, {})).body.getReader();
    let [pieces, have, needed] = [[], 0, 4];
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      pieces.push(value);
      have += value.length;
      if (have < needed) continue;
      const joined = new Uint8Array(have);
      let at = 0;
      for (const each of pieces) {
        joined.set(each, at);
        at += each.length;
      }
      let rest;
      [rest, needed] = await hear(joined);
      [pieces, have] = [[rest], rest.length];
    }
  }

  /** Whole messages are passed on. What is left over, and how long it has to be before the next is whole. */
  async function hear(bytes) {
    for (let at = 0; ; ) {
      const left = bytes.length - at;
      if (left < 4) return [bytes.subarray(at), 4];
      const begin = 4 + new DataView(bytes.buffer, at, 4).getUint32(0, true);
      if (left < begin) return [bytes.subarray(at), begin];
      const header = JSON.parse(new TextDecoder().decode(bytes.subarray(at + 4, at + begin)));
      if (left < begin + header.bytes) return [bytes.subarray(at), begin + header.bytes];
      await pass(header, bytes.subarray(at + begin, at + begin + header.bytes));
      at += begin + header.bytes;
    }
  }

  async function pass(message, body) {
    if (message.kind !== "piece") return say(message);
    const { made, owned } = await R.ready(message.piece, message.header, body);
    say({ kind: "piece", key: message.key, piece: message.piece, made }, owned);
  }

  globalThis.onmessage = ({ data }) => {
    if (data === "stop") return stopped.abort();
    if (data.unpack) {
      const [piece, header, body] = data.unpack;
      return R.ready(piece, header, R.bytesOf(body)).then(({ made, owned }) => say({ made }, owned), (fault) => say({ fault: String(fault) }));
    }
    receive(data.file, data.address).then(
      () => say({ kind: "ended" }),
      (fault) => say(fault instanceof Refused ? { kind: "refused", name: data.file.name, reason: fault.message } : { kind: "failed", words: String(fault) }),
    );
  };
})();
