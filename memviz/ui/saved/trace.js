// @ts-check
// One trace in a saved page: everything that the page's server would be asked about it, answered out of the file.
import { bytesOf, unpack } from "../components/memory_timeline/packed.js";

/** @typedef {{ header: any, body: string }} Packed */
/** Whether an allocation belongs to a group, by its own stack, module or category.
 * @typedef {{ own: ArrayLike<number>, isIn: (code: number) => boolean }} Choice */

/** @param {Packed} packed @returns {Promise<any>} */
const columnsOf = async ({ header, body }) => unpack(header, bytesOf(body));
const empty = { header: { columns: [] }, columns: {} };

export class SavedTrace {
  /** @param {any} data as explore.py writes it */
  constructor(data) {
    this.data = data;
    /** @type {Map<string, any>} */ this.known = new Map();
  }

  /** Unpacked once. @param {string} name @returns {Promise<any>} */
  columns(name) {
    return this.once(`columns ${name}`, () => columnsOf(this.data.pieces[name]));
  }

  /** @param {string} name @param {() => Promise<any>} make */
  once(name, make) {
    if (!this.known.has(name)) this.known.set(name, make());
    return this.known.get(name);
  }

  /** As the server answers; see memory_timeline/README.md. @param {Record<string, string>} request */
  async piece({ piece, meaning, by, group }) {
    if (piece === "sites") return this.sites();
    if (piece === "lit") return { header: { columns: [] }, columns: { bits: await this.bits(this.data.lights, by, group) } };
    return this.data.pieces[piece === "groups" ? `groups ${meaning || "category"}` : piece] || empty;
  }

  sites() {
    return this.once("sites", async () => {
      const { labels, code } = this.data.sites;
      const [{ site }, { stack }] = await Promise.all([columnsOf(code), this.columns("stacks")]);
      return { header: { labels, columns: [] }, columns: { site: stack.map((/** @type {number} */ number) => site[number]) } };
    });
  }

  /** One bit per allocation: those of a group.
   * @param {Record<string, any>} lights @param {string} by @param {string} group */
  async bits(lights, by, group) {
    const { own, isIn } = await this.choice(lights, by, group);
    const bits = new Uint8Array((own.length >> 3) + 1);
    for (let i = 0; i < own.length; i++) if (isIn(own[i])) bits[i >> 3] |= 1 << (i & 7);
    return bits;
  }

  /** @param {Record<string, any>} lights @param {string} by @param {string} group @returns {Promise<Choice>} */
  async choice(lights, by, group) {
    if (by === "category") {
      const wanted = this.data.pieces["groups category"].header.labels.indexOf(group);
      return { own: (await this.columns("groups category")).group, isIn: (code) => code === wanted };
    }
    if (by === "path") {
      const { stack } = await this.columns("stacks");
      const below = await this.stacksBelow(group.split(",").map(Number));
      return { own: stack, isIn: (code) => below[code] === 1 };
    }
    const light = lights[by] || { keys: [] };
    const wanted = light.keys.indexOf(group) + 1;
    const own = by === "module" ? (await this.columns("modules")).module : (await this.columns("stacks")).stack;
    if (!wanted) return { own, isIn: () => false };
    light.places ??= (await columnsOf(light.place)).place;
    return { own, isIn: (code) => light.places[code] === wanted };
  }

  /** By the numbers of the piece "stacks": 1 where the stack's outermost frames are these.
   * @param {number[]} path */
  async stacksBelow(path) {
    const { length, frame } = await this.columns("frames");
    const below = new Uint8Array(length.length + 2);
    let end = 0;
    for (let i = 0; i < length.length; i++) {
      end += length[i];
      below[i + 1] = length[i] >= path.length && path.every((wanted, depth) => frame[end - 1 - depth] === wanted) ? 1 : 0;
    }
    if (path.length === 1 && path[0] === this.data.pieces.frames.header.no_frames) below[0] = 1;
    return below;
  }

  spans() {
    return this.once("spans", async () => {
      const { start, span, size_low: low, size_high: high } = await this.columns("timeline");
      let at = 0;
      const begins = start.map((/** @type {number} */ step) => (at += step));
      return { begins, ends: begins.map((/** @type {number} */ begin, /** @type {number} */ i) => begin + span[i]), size: (/** @type {number} */ row) => low[row] + high[row] * 2 ** 32 };
    });
  }

  /** @param {number} row */
  async allocation(row) {
    const [{ begins, ends, size }, { stack }, { group }, { header, columns }] = await Promise.all([
      this.spans(),
      this.columns("stacks"),
      this.columns("groups category"),
      this.sites(),
    ]);
    const { labels, colours } = this.data.pieces["groups category"].header;
    return {
      bytes: size(row),
      first: begins[row] - 1,
      last: ends[row] - 1,
      events: this.data.pieces.timeline.header.events,
      kind: labels[group[row]],
      colour: { light: colours.light[group[row]], dark: colours.dark[group[row]] },
      site: header.labels[columns.site[row]],
      text: this.data.stacks.texts[stack[row]],
    };
  }
}
