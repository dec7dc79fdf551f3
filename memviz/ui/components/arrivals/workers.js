// @ts-check
// Threads that run worker.js: the next one starts while nobody waits for it.
import { unpackAside } from "../memory_timeline/data.js";

const KEPT_AFTER_MS = 2000;

/** @type {Worker | null} */
let spare = null;

/** What they run stands in the page as text, and needs no address. */
const newWorker = () => new Worker(URL.createObjectURL(new Blob([document.getElementById("memviz-worker")?.textContent || ""], { type: "text/javascript" })));

export function takeWorker() {
  const worker = spare || newWorker();
  spare = null;
  setTimeout(keepSpare, KEPT_AFTER_MS);
  return worker;
}

export function keepSpare() {
  if (globalThis.Worker) spare ||= newWorker();
}

unpackAside(
  (piece, header, body) =>
    new Promise((done, fail) => {
      const worker = takeWorker();
      worker.onmessage = ({ data }) => {
        worker.terminate();
        if (data.made) done(data.made);
        else fail(new Error(data.fault));
      };
      worker.postMessage({ unpack: [piece, header, body] });
    }),
);
