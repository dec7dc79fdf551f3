// @ts-check
// One of many traces is drawn before the server has answered, where its pieces are at hand; and the pieces of those that
// are likely to come next are asked for meanwhile, one trace at a time.
import { FIRST_MEANING, isAtHand, keepPiece, piecesAsked, piecesOf } from "./data.js";
import { Part } from "./viewport.js";

/** @import { Value } from "./timeline.js" */

/** Characters of the keys last asked for, which the page's element tells of: a test waits for its own. */
const MOST_NAMED = 1_000;

export class Ahead extends Part {
  /** Keys; the last one is wanted most. @type {string[]} */
  wanted = [];
  isAsking = false;

  /** The page's own value follows, with what only the server knows: until then nothing is told of this trace.
   * @param {string} key */
  show(key) {
    const { value } = this.timeline;
    if (!value || value.key === key || !isAtHand(key)) return;
    this.timeline.root.dataset.ahead = "";
    // Where the last one had phases there is room for them already, so that the plot stays where it is.
    const known = piecesOf(key).value || { key, band: Boolean(value.phases?.length) };
    this.timeline.load({ ...known, state: {}, isAhead: true });
  }

  /** What the page says of a trace, for the next time. @param {Value} value */
  note(value) {
    if (!value.linked && isAtHand(value.key)) keepPiece(value.key, "value", { ...value, state: {} });
  }

  /** @param {string[]} keys the last one is wanted most */
  expect(keys) {
    this.wanted = keys.filter((key) => !isAtHand(key));
    this.ask();
  }

  async ask() {
    if (this.isAsking) return;
    this.isAsking = true;
    for (let key = this.wanted.pop(); key; key = this.wanted.pop()) {
      // Whoever looks at it asks again, and is told what is wrong.
      await piecesAsked(this.timeline.server, key, FIRST_MEANING).catch(() => {});
      this.timeline.root.dataset.asked = `${this.timeline.root.dataset.asked || ""} ${key}`.slice(-MOST_NAMED);
    }
    this.isAsking = false;
  }
}
