// Files that a visitor drops or chooses: each with a row of its own beside the open traces, a worker that sends it
// (worker.js), and its first picture in Explore where nothing else is looked at. Gradio's own upload is left to
// browsers and servers where this way does not answer.
(() => {
  "use strict";
  const T = globalThis.memvizTimeline;
  const TARGETS = "#files, #first-files";
  const PATIENCE_MS = 8000;
  const TURNS = 4;

  const isSupported = () => Boolean(globalThis.Worker && globalThis.DecompressionStream && globalThis.gradio_config);
  const address = () => `${(globalThis.gradio_config.root || location.origin).replace(/\/$/, "")}/gradio_api/memviz/readings`;

  // -- workers: the next one starts while nobody waits for it

  const source = document.getElementById("memviz-worker");
  let spare = null;
  const newWorker = () => new Worker(URL.createObjectURL(new Blob([source.textContent], { type: "text/javascript" })));
  function worker() {
    const made = spare || newWorker();
    spare = null;
    setTimeout(keepSpare, 2000);
    return made;
  }
  function keepSpare() {
    if (!spare && isSupported()) spare = newWorker();
  }

  /** A piece so large that unpacking it would stop the page for a moment. */
  globalThis.memvizAside = (piece, header, body) =>
    new Promise((done, fail) => {
      const aside = worker();
      aside.onmessage = ({ data }) => {
        aside.terminate();
        if (data.made) done(data.made);
        else fail(new Error(data.fault));
      };
      aside.postMessage({ unpack: [piece, header, body] });
    });

  // -- one file

  class Arrival {
    constructor(file, arrivals) {
      this.file = file;
      this.arrivals = arrivals;
      this.share = 0;
      this.row = T.el("div", { class: "mv-arrival", role: "status" },
        T.el("b", { title: file.name }, file.name),
        (this.words = T.el("small", {}, "waiting")),
        T.el("button", { type: "button", class: "mv-x", "aria-label": `Cancel ${file.name}`, onclick: () => this.cancel() }, "×"),
        (this.line = T.el("i", {})));
    }

    /** Resolves when it is open, refused or cancelled. */
    run() {
      this.isFirst = !document.querySelector("[data-mv-link]") && !document.body.classList.contains("mv-first");
      this.say("reading", 0);
      if (this.isFirst) this.draw({ live: [0], share: 0 });
      this.worker = worker();
      return new Promise((done) => {
        this.done = done;
        this.worker.onmessage = ({ data }) => this.hear(data);
        this.worker.onerror = (fault) => this.hear({ kind: "failed", words: fault.message });
        this.worker.postMessage({ file: this.file, address: address() });
      });
    }

    hear(message) {
      const act = { begun: () => (this.begun = true), reading: () => this.reading(message), curve: () => this.curve(message), piece: () => T.give(message.key, message.piece, message.made), opened: () => this.opened(message), refused: () => this.refused(message.reason), failed: () => this.failed(), ended: () => this.failed() }[message.kind];
      if (act && !this.over) act();
    }

    reading(message) {
      this.say(`reading, ${Math.round(100 * message.share)} %`, message.share);
      this.draw(message);
    }

    curve(message) {
      this.say("drawing", 1);
      this.draw({ ...message, share: 1 });
    }

    say(words, share) {
      this.words.textContent = words;
      this.line.style.width = `${100 * share}%`;
    }

    draw(total) {
      if (!this.isFirst) return;
      document.body.classList.add("mv-first");
      const part = Math.round(100 * total.share);
      const words = total.reserved ? `${this.file.name}: the total. Its colours follow.` : `Reading ${this.file.name}, ${part} %. The total so far, without what was there before.`;
      explored()?.showTotal({ ...total, words });
    }

    /** Gradio is told once the colours are on the screen: the words may take what the picture leaves of the machine. */
    opened({ stored, key }) {
      this.finish();
      const ready = this.isFirst ? explored()?.drawnOf(key) : null;
      this.leaveOnceShown({ stored }, `#traces [data-key="${CSS.escape(stored)}"]`, ready);
    }

    refused(reason) {
      this.finish();
      const turn = String(++this.arrivals.refusals);
      this.leaveOnceShown({ refused: this.file.name, reason, turn }, `#band [data-refused="${turn}"]`);
      explored()?.endTotal();
    }

    /** Nobody of ours answered: Gradio's own way is tried. Later on the line has broken. */
    failed() {
      if (this.begun) return this.refused("The connection broke while it was sent. Open it again.");
      this.finish();
      this.leave();
      explored()?.endTotal();
      fallBack(this.file);
    }

    cancel() {
      if (this.over) return this.leave();
      this.worker?.postMessage("stop");
      // It still tells the server.
      const stopping = this.worker;
      this.worker = null;
      setTimeout(() => stopping?.terminate(), 1000);
      this.finish();
      this.leave();
      explored()?.endTotal();
    }

    finish() {
      this.over = true;
      this.worker?.terminate();
      this.done?.();
    }

    /** Until Gradio shows what we told it, the row stays. */
    async leaveOnceShown(message, where, ready = null) {
      if (await this.arrivals.told(message, where, ready)) return this.leave();
      this.say("The page does not answer. Reload it, then open this again.", 1);
      if (this.isFirst) document.body.classList.remove("mv-first");
    }

    leave() {
      this.row.remove();
      if (this.isFirst) document.body.classList.remove("mv-first");
    }
  }

  const explored = () => [...T.mounted].find((each) => each.host.id === "timeline" || each.host.closest("#timeline"));

  function fallBack(file) {
    const input = document.querySelector("#files input[type=file]");
    if (!input) return;
    const all = new DataTransfer();
    all.items.add(file);
    input.files = all.files;
    input.dispatchEvent(new CustomEvent("change", { bubbles: true, detail: "gradio" }));
  }

  // -- all of them, one after the other

  class Arrivals {
    constructor(element, tell) {
      this.place = element.querySelector(".mv-arrivals");
      this.tell = tell;
      this.waiting = [];
      this.refusals = 0;
      this.telling = Promise.resolve();
      const take = (event, list) => {
        if (event.detail === "gradio" || !isSupported() || !list?.length || !(event.target instanceof Element) || !event.target.closest(TARGETS)) return;
        event.preventDefault();
        event.stopImmediatePropagation();
        this.add([...list]);
      };
      window.addEventListener("change", (event) => {
        if (event.target?.type !== "file") return;
        take(event, event.target.files);
        if (event.defaultPrevented || event.detail !== "gradio") event.target.value = "";
      }, true);
      window.addEventListener("drop", (event) => take(event, event.dataTransfer?.files), true);
      setTimeout(keepSpare, 500);
    }

    add(files) {
      for (const file of files) {
        const arrival = new Arrival(file, this);
        this.place.append(arrival.row);
        this.waiting.push(arrival);
      }
      if (!this.isBusy) this.work();
    }

    /** One after the other: every answer is the whole page anew, and of two at once one would be lost. */
    told(message, where, ready) {
      return (this.telling = this.telling.then(() => ready).then(() => this.tellUntilShown(message, where)));
    }

    async tellUntilShown(message, where) {
      for (let turn = 0; turn < TURNS; turn++) {
        this.tell(message);
        const begun = performance.now();
        while (performance.now() - begun < PATIENCE_MS) {
          if (document.querySelector(where)) return true;
          await new Promise((next) => setTimeout(next, 30));
        }
      }
      return false;
    }

    async work() {
      this.isBusy = true;
      while (this.waiting.length) {
        const next = this.waiting.shift();
        if (!next.over) await next.run();
      }
      this.isBusy = false;
    }
  }

  globalThis.memvizArrivals = { mount: (element, tell) => new Arrivals(element, tell) };
})();
