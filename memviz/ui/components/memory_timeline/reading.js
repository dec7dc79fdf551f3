// @ts-check
// While a file is being read: its total stands where the timeline will, until a piece of it has come by itself.
import { Part } from "./part.js";

const MOST_PATIENCE_MS = 3000;

/** @typedef {import("./total.js").Total} Total */

export class Reading extends Part {
  /** What is drawn meanwhile.
   * @type {Total | null} */
  total = null;

  /** The total alone, in grey, of a trace that is not whole yet; see total.js.
   * @param {Total} total */
  show(total) {
    const { timeline } = this;
    timeline.attach();
    timeline.close();
    this.total = total;
    timeline.root.hidden = false;
    timeline.root.classList.remove("mvt-plain");
    timeline.title.hidden = true;
    timeline.root.dataset.total = "";
    delete timeline.root.dataset.drawn;
    timeline.waiting.textContent = total.words;
    timeline.schedule();
  }

  /** The timeline itself is there. */
  over() {
    this.total = null;
    delete this.timeline.root.dataset.total;
  }

  end() {
    if (!this.total) return;
    this.over();
    this.timeline.load(null);
  }

  /** Resolves when this trace's allocations are on the screen, or some time later anyhow.
   * @param {string} key @returns {Promise<void>} */
  drawnOf(key) {
    const { timeline } = this;
    const begun = performance.now();
    return new Promise((done) => {
      const look = () => {
        const isDrawn = timeline.value?.key === key && timeline.root.dataset.drawn;
        if (isDrawn || performance.now() - begun > MOST_PATIENCE_MS) requestAnimationFrame(() => setTimeout(done));
        else setTimeout(look, 10);
      };
      look();
    });
  }
}
