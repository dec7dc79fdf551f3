// @ts-check
// Files that a visitor drops or chooses: each with a row of its own beside the open traces, a worker that sends it
// (worker.js), and its first picture in Explore where nothing else is looked at. Gradio's own upload is left to programs.
import { Component, el, known, mounting, say } from "../base.js";
import { unpacking } from "../memory_timeline/data.js";
import { mounted } from "../memory_timeline/timeline.js";

/** @import { Total } from "../memory_timeline/total.js" */

// -- threads that run worker.js: the first one is started ahead of its use, and each is used again

/** @type {Worker[]} */ const idle = [];

/** What they run stands in the page as text, and needs no address. */
const newWorker = () => new Worker(URL.createObjectURL(new Blob([document.getElementById("memviz-worker")?.textContent || ""], { type: "text/javascript" })));
const takeWorker = () => idle.pop() || newWorker();

unpacking.aside = (piece, header, body) =>
  new Promise((done, fail) => {
    const worker = takeWorker();
    worker.onmessage = ({ data }) => {
      idle.push(worker);
      if (data.made) done(data.made);
      else fail(new Error(data.fault));
    };
    worker.postMessage({ unpack: [piece, header, body] });
  });

const TARGETS = "#files, #first-files";
const PATIENCE_MS = 8000;
const TURNS = 4;
/** Files that come together and are more than two to compare: ranks, as a rule. */
const MANY = 3;
/** Of these files so many are on their way at a time: one is packed while another is read. */
const LANES = 3;
/** So many new rows the page can show before anybody's patience ends. */
const TOGETHER = 8;
/** Until so many have come, but no longer. */
const GATHER_MS = 700;
const TURN_MS = 30;
const SPARE_AFTER_MS = 500;
const STOP_MS = 1000;
/** rank2 before rank10. */
const NATURAL = new Intl.Collator(undefined, { numeric: true });

/** What Gradio is told: a file that is open now, or one that is refused.
 * @typedef {{ drop: number } & ({ stored: string, beside?: string, begins?: string } | { refused: string, reason: string, turn: string })} Told */

/** `where` it is shown then.
 * @typedef {{ message: Told, where: string, ready: Promise<void> | null, done: (isShown: boolean) => void }} Telling */

const pause = (/** @type {number} */ ms) => new Promise((next) => setTimeout(next, ms));

const address = () => `${(/** @type {any} */ (globalThis).gradio_config?.root || location.origin).replace(/\/$/, "")}/gradio_api/memviz/readings`;
const explored = () => [...mounted].find(({ host }) => host.closest("#timeline"));

// -- one file

class Arrival {
  words = el("small", {}, "waiting");
  line = el("i");
  isFirst = false;
  isOver = false;
  /** The server has begun to read it. */
  isBegun = false;
  /** @type {Worker | null} */ worker = null;
  done = () => {};
  /** Gradio is about to be told of it, or never will be. @type {() => void} */
  pass = () => {};
  passed = new Promise((/** @type {(_: void) => void} */ pass) => (this.pass = pass));

  /** @param {File} file @param {Arrivals} arrivals @param {boolean} isBeside of many: the first of them is looked at
   * @param {Arrival | undefined} before it in their order */
  constructor(file, arrivals, isBeside, before) {
    this.file = file;
    this.arrivals = arrivals;
    this.isBeside = isBeside;
    this.drop = arrivals.drops;
    this.before = before;
    const cancel = el("button", { type: "button", class: "mv-x", "aria-label": `Cancel ${file.name}`, onclick: () => this.cancel() }, "×");
    this.row = el("div", { class: "mv-arrival", role: "status" }, el("b", { title: file.name }, file.name), this.words, cancel, this.line);
  }

  /** Resolves when it is open, refused or cancelled. @returns {Promise<void>} */
  run() {
    this.isFirst = !document.querySelector("[data-mv-link]") && !document.body.classList.contains("mv-first");
    this.say("reading", 0);
    if (this.isFirst) this.draw({ live: [0], share: 0 });
    const worker = (this.worker = takeWorker());
    return new Promise((done) => {
      this.done = done;
      worker.onmessage = ({ data }) => {
        this.hear(data);
        if (data.kind === "ended" && this.worker) idle.push(worker);
      };
      worker.onerror = (fault) => this.hear({ kind: "failed", words: fault.message });
      worker.postMessage({ file: this.file, address: address(), rate: this.arrivals.rate, isBeside: this.isBeside });
    });
  }

  /** @param {any} message */
  hear(message) {
    /** @type {Record<string, () => void>} */
    const acts = {
      waits: () => {
        this.say("waiting", 0);
        this.draw({ live: [0], share: 0, words: `${this.file.name} waits: many files are being read on this server.` });
      },
      begun: () => (this.isBegun = true),
      line: () => (this.arrivals.rate = Math.max(this.arrivals.rate, message.rate)),
      reading: () => {
        this.say(`reading, ${Math.round(100 * message.share)} %`, message.share);
        this.draw(message);
      },
      curve: () => {
        this.say("drawing", 1);
        this.draw({ ...message, share: 1 });
      },
      piece: () => say("memviz:piece", message),
      opened: () => this.opened(message),
      refused: () => this.refused(message.reason),
      failed: () => this.failed(),
      ended: () => this.failed(),
    };
    if (!this.isOver) acts[message.kind]?.();
  }

  /** @param {string} words @param {number} share */
  say(words, share) {
    this.words.textContent = words;
    this.line.style.width = `${100 * share}%`;
  }

  /** @param {Pick<Total, "live" | "share"> & Partial<Total>} total */
  draw(total) {
    if (!this.isFirst) return;
    document.body.classList.add("mv-first");
    const part = Math.round(100 * total.share);
    const words = total.reserved ? `${this.file.name}: the total. Colours follow.` : `Reading ${this.file.name}, ${part} %. The total so far, without memory from before recording started.`;
    explored()?.reading.show({ peak_bytes: 0, words, ...total });
  }

  /** Gradio is told once the colours are on the screen: the words may take what the picture leaves of the machine.
   * @param {{ stored: string, key: string }} message */
  opened({ stored, key }) {
    this.finish();
    // A table of ranks, and an archive of several, has no timeline: what was shown of its way here ends.
    if (!key) explored()?.reading.end();
    const ready = this.isFirst && key ? explored()?.reading.drawnOf(key) : null;
    const [first, ...others] = stored.split(" ");
    const message = { stored, drop: this.drop, beside: this.isBeside ? "1" : undefined, begins: others.length ? "1" : undefined };
    // The samples make way a moment after the trace is listed.
    const page = this.isFirst && key ? "body:not(:has(#home)) " : "";
    this.leaveOnceShown(message, `${page}#traces [data-key="${CSS.escape(first)}"]`, ready);
  }

  /** @param {string} reason */
  refused(reason) {
    this.finish();
    const turn = String(++this.arrivals.refusals);
    this.leaveOnceShown({ refused: this.file.name, reason, turn, drop: this.drop }, `#band [data-refused="${turn}"]`);
    explored()?.reading.end();
  }

  /** The server said nothing of it, or no more. */
  failed() {
    this.refused(this.isBegun ? "The connection was lost during the upload. Open the file again." : "This server cannot be reached. Reload the page, then open the file again.");
  }

  cancel() {
    if (this.isOver) return this.leave();
    // It still tells the server.
    const stopping = this.worker;
    stopping?.postMessage("stop");
    this.worker = null;
    setTimeout(() => stopping?.terminate(), STOP_MS);
    this.finish();
    this.leave();
    explored()?.reading.end();
  }

  finish() {
    this.isOver = true;
    this.done();
  }

  /** Until Gradio shows what we told it, the row stays.
   * @param {Told} message @param {string} where @param {Promise<void> | null} [ready] */
  async leaveOnceShown(message, where, ready = null) {
    await this.before?.passed;
    this.before = undefined;
    const shown = this.arrivals.told(message, where, ready);
    this.pass();
    if (await shown) return this.leave();
    this.say("The page does not respond. Reload it, then open the file again.", 1);
    if (this.isFirst) document.body.classList.remove("mv-first");
  }

  leave() {
    this.pass();
    this.row.remove();
    if (this.isFirst) document.body.classList.remove("mv-first");
  }
}

// -- all of them, in their order

class Arrivals extends Component {
  /** @type {Arrival[]} */ waiting = [];
  lanes = 0;
  /** @type {Arrival | undefined} */
  last;
  refusals = 0;
  /** How often files came, each time one or several. */
  drops = 0;
  /** Bytes a second that the line to the server has had once: it is never slower than a busy machine makes it look. */
  rate = 0;
  /** How many files of the newest drop are open. */
  opened = { drop: 0, count: 0 };
  /** @type {Telling[]} */ queue = [];
  isTelling = false;

  build() {
    this.root.className = "mv-arrivals";
    window.addEventListener("change", (event) => {
      const { target } = event;
      if (!(target instanceof HTMLInputElement) || target.type !== "file" || !target.closest(TARGETS)) return;
      this.take(event, target.files);
      target.value = "";
    }, true);
    window.addEventListener("drop", (event) => this.take(event, event.dataTransfer?.files), true);
    setTimeout(() => idle.push(newWorker()), SPARE_AFTER_MS);
  }

  /** @param {Event} event @param {FileList | null} [list] */
  take(event, list) {
    if (!list?.length || !(event.target instanceof Element) || !event.target.closest(TARGETS)) return;
    event.preventDefault();
    event.stopImmediatePropagation();
    say("memviz:files", null);
    this.add([...list]);
  }

  /** @param {File[]} files */
  add(files) {
    this.drops++;
    if (files.length >= MANY) files.sort((one, other) => NATURAL.compare(one.name, other.name));
    for (const [place, file] of files.entries()) {
      const arrival = new Arrival(file, this, place > 0 && files.length >= MANY, this.last);
      this.last = arrival;
      this.root.append(arrival.row);
      this.waiting.push(arrival);
    }
    this.openLanes(1);
  }

  /** @param {number} most */
  openLanes(most) {
    while (this.lanes < most && this.waiting.length) this.work();
  }

  async work() {
    this.lanes++;
    for (let next = this.waiting.shift(); next; next = this.waiting.shift()) {
      if (!next.isOver) await next.run();
      // The first comes as fast as it can.
      this.openLanes(LANES);
    }
    this.lanes--;
  }

  /** One after the other: every answer is the whole page anew, and of two at once one would be lost.
   * @param {Told} message @param {string} where @param {Promise<void> | null} ready @returns {Promise<boolean>} */
  told(message, where, ready) {
    return new Promise((done) => {
      this.queue.push({ message, where, ready, done });
      this.tellAll();
    });
  }

  async tellAll() {
    if (this.isTelling) return;
    this.isTelling = true;
    await known;
    for (let next = this.queue.shift(); next; next = this.queue.shift()) {
      await next.ready;
      const told = "stored" in next.message ? await this.gathered(next) : [next];
      const stored = told.flatMap(({ message }) => ("stored" in message ? [message.stored] : [])).join(" ");
      const { message } = next;
      const shown = await this.tellUntilShown("stored" in message ? { ...message, stored, begins: this.begins(message, told.length) } : message, told[told.length - 1].where);
      for (const { done } of told) done(shown);
    }
    this.isTelling = false;
  }

  /** With those of the same drop that come meanwhile, or soon: of many files each would be the page anew.
   * @param {Telling} first */
  async gathered(first) {
    const until = performance.now() + GATHER_MS;
    const { drop } = first.message;
    const isAlso = (/** @type {Telling | undefined} */ { message } = first) => message !== first.message && "stored" in message && message.beside && message.drop === drop;
    if (!("beside" in first.message && first.message.beside)) return [first];
    while (this.lanes && this.opened.count > 1 && this.queue.length < TOGETHER && performance.now() < until) await pause(TURN_MS);
    const told = [first];
    while (told.length < TOGETHER && isAlso(this.queue[0])) told.push(.../** @type {Telling[]} */ (this.queue.splice(0, 1)));
    return told;
  }

  /** One rank has none to compare with: their tab is turned to once there are two.
   * @param {Extract<Told, { stored: string }>} message @param {number} count */
  begins({ drop, beside, begins }, count) {
    const before = this.opened.drop === drop ? this.opened.count : 0;
    this.opened = { drop, count: before + count };
    return beside ? (before < 2 ? "1" : undefined) : begins;
  }

  /** @param {Told} message @param {string} where */
  async tellUntilShown(message, where) {
    for (let turn = 0; turn < TURNS; turn++) {
      this.tell.click(message);
      const begun = performance.now();
      while (performance.now() - begun < PATIENCE_MS) {
        if (document.querySelector(where)) return true;
        await pause(TURN_MS);
      }
    }
    return false;
  }
}

export const mount = mounting(Arrivals);
