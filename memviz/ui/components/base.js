// @ts-check
// What every component's script stands on: elements, colours, the tooltip, files that people save, and the base class.

const SVG = "http://www.w3.org/2000/svg";

/** @typedef {Record<string, any>} Attributes */
/** @typedef {{ x: number, y: number }} Point */
/** What `mount` is given; `tell` has a function for each event that Python listens to.
 * @typedef {{ props: { value: any }, watch: (name: string, changed: () => void) => void, server: Record<string, (request: any) => Promise<any>>, tell: Record<string, (data?: any) => void> }} Gradio */

/** Texts are only ever set as text, never as markup.
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag @param {Attributes} [attributes] @param {(Node | string)[]} children
 * @returns {HTMLElementTagNameMap[Tag]} */
export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") node.className = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

/** @template {keyof SVGElementTagNameMap} Tag
 * @param {Tag} tag @param {Attributes} attributes @param {string} [text] @returns {SVGElementTagNameMap[Tag]} */
export function shape(tag, attributes, text) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

/** @param {string} sign @param {string} label @param {() => void} act */
export const button = (sign, label, act) => el("button", { type: "button", class: "mvt-button", "aria-label": label, title: label, onclick: act }, sign);

/** Buttons of which one is chosen: the first one, until `show` says another.
 * @param {string} label @param {Record<string, string>} texts by choice @param {(choice: any) => void} choose */
export function switchOf(label, texts, choose) {
  const buttons = Object.fromEntries(Object.entries(texts).map(([choice, text]) => [choice, el("button", { type: "button", onclick: () => choose(choice) }, text)]));
  const show = (/** @type {string} */ chosen) => {
    for (const [choice, node] of Object.entries(buttons)) node.setAttribute("aria-pressed", String(choice === chosen));
  };
  show(Object.keys(texts)[0]);
  return { node: el("div", { class: "mvt-switch", role: "group", "aria-label": label }, ...Object.values(buttons)), buttons, show };
}

/** @param {number} value @param {number} low @param {number} high */
export const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

/** @param {string} name @param {any} detail */
export const say = (name, detail) => window.dispatchEvent(new CustomEvent(name, { detail }));

/** What another part of the page says; the names stand in memory_timeline/README.md.
 * @param {string} name @param {(detail: any) => void} hear */
export const onSaid = (name, hear) => window.addEventListener(name, (event) => hear(/** @type {CustomEvent} */ (event).detail));

/** @param {Event} event @param {string} selector @returns {HTMLElement | null} */
export const nearest = (event, selector) => (event.target instanceof Element ? event.target.closest(selector) : null);

/** @param {string} selector @param {ParentNode} [within] @returns {HTMLElement[]} */
export const all = (selector, within = document) => [.../** @type {NodeListOf<HTMLElement>} */ (within.querySelectorAll(selector))];

/** Hears of a pressed pointer until it is let go, or longer where `done` says so.
 * @param {HTMLElement | Window} node @param {(next: PointerEvent) => void} move @param {(end: PointerEvent) => boolean | void} done */
export function whilePressed(node, move, done) {
  const listening = new AbortController();
  const hear = (/** @type {string} */ name, /** @type {(event: any) => void} */ act) => node.addEventListener(name, act, { signal: listening.signal });
  hear("pointermove", move);
  for (const name of ["pointerup", "pointercancel"]) hear(name, (end) => done(end) || listening.abort());
}

/** @param {EventTarget | null} node */
export const isTyping = (node) => node instanceof HTMLElement && (node.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(node.tagName));

/** Its key, if the browser or the system does not want it for itself; a letter is a lower case one.
 * @param {KeyboardEvent} event */
export function plainKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return "";
  return event.key.length === 1 ? event.key.toLowerCase() : event.key;
}

/** Does what its key stands for; the browser leaves that key alone then.
 * @param {KeyboardEvent} event @param {Record<string, () => void>} acts by key */
export function actOnKey(event, acts) {
  const act = acts[plainKey(event)];
  if (!act) return;
  event.preventDefault();
  act();
}

/** Once it has not been asked for so long, with what was asked for last; if eager, after a rest at once as well.
 * @template {any[]} Asked
 * @param {(...asked: Asked) => void} act @param {number} ms */
export function onceQuiet(act, ms, isEager = false) {
  let waiting = 0;
  const cancel = () => {
    clearTimeout(waiting);
    waiting = 0;
  };
  const ask = (/** @type {Asked} */ ...asked) => {
    if (isEager && !waiting) act(...asked);
    cancel();
    waiting = setTimeout(() => {
      waiting = 0;
      act(...asked);
    }, ms);
  };
  return Object.assign(ask, { cancel });
}

// -- what is told to Python

/** Every event is answered, one after the other: for clicks.
 *
 * While an answer is on its way, Gradio (6.31, `always_last`) keeps in mind only that something more was told, and then
 * sends the first event once more. So an event is an object that decides what it says when it is sent.
 * @param {(event: any) => void} tell @returns {(data: any) => void} */
export const inTurn = (tell) => telling(tell, (waiting, data) => [...waiting, data]);

/** Of the events that come while an answer is on its way only the last is told: for what is dragged or typed.
 * @param {(event: any) => void} tell @returns {(data: any) => void} */
export const latest = (tell) => telling(tell, (_waiting, data) => [data]);

/** Gradio needs a moment to see that an event is on its way. */
const SEEN_MS = 50;

/** Nothing is told before the page has heard what its visitor had open; see beginning.py. */
const hasBegun = () => document.documentElement.dataset.mvBegins === undefined;
/** @type {Promise<void>} */
export const known = new Promise((done) => {
  if (hasBegun()) return done();
  const begun = () => {
    delete document.documentElement.dataset.mvBegins;
    done();
  };
  window.addEventListener("memviz:known", begun, { once: true });
});

/** @param {(event: any) => void} tell @param {(waiting: any[], data: any) => any[]} queue */
function telling(tell, queue) {
  /** @type {any[]} */ let waiting = [];
  /** @type {any} */
  let said;
  const soon = onceQuiet(again, SEEN_MS);
  // Until it is taken: where an answer fails, Gradio forgets that more was told meanwhile.
  function again() {
    if (!waiting.length) return;
    tell(event);
    soon();
  }
  const event = {
    toJSON() {
      if (waiting.length) said = waiting.shift();
      soon();
      return said;
    },
  };
  return (/** @type {any} */ data) => {
    const isFirst = !waiting.length;
    waiting = queue(waiting, data);
    if (!hasBegun()) isFirst && known.then(again);
    else if (isFirst) again();
    else soon();
  };
}

// -- colours

export const isDark = () => document.body.classList.contains("dark");

/** 0xRRGGBB as a little-endian pixel. @param {number} rgb */
export const pixel = (rgb) => (0xff000000 | ((rgb & 0xff) << 16) | (rgb & 0xff00) | (rgb >> 16)) >>> 0;

/** @param {Element} root @param {string} name @returns {string} "#rrggbb" */
export function token(root, name) {
  const text = getComputedStyle(root).getPropertyValue(name).trim();
  return /^#[0-9a-f]{6}$/i.test(text) ? text : "#808080";
}

/** Red, green and blue of a pixel. @param {number} px */
export const channels = (px) => [px & 0xff, (px >> 8) & 0xff, (px >> 16) & 0xff];

/** @param {number} px @param {number} other @param {number} share of the other */
export function mixed(px, other, share) {
  const [a, b] = [channels(px), channels(other)];
  const [red, green, blue] = a.map((value, i) => Math.round(value + (b[i] - value) * share));
  return (0xff000000 | (blue << 16) | (green << 8) | red) >>> 0;
}

/** @param {string} colour "#rrggbb" */
export const pixelOf = (colour) => pixel(parseInt(colour.slice(1), 16));

/** @param {Record<string, number[]>} tables @returns {Record<string, Uint32Array>} */
export const palettesOf = (tables) => Object.fromEntries(Object.entries(tables).map(([mode, table]) => [mode, Uint32Array.from(table, pixel)]));

/** @param {() => void} act after the page has turned dark or light */
export const onModeChange = (act) => new MutationObserver(act).observe(document.body, { attributes: true, attributeFilter: ["class"] });

export const pixelRatio = () => Math.min(window.devicePixelRatio || 1, 2);

/** A canvas of this size on the page, in the screen's own pixels: what draws on it.
 * @param {HTMLCanvasElement} canvas @param {{ width: number, height: number }} size */
export function penOf(canvas, { width, height }) {
  const scale = pixelRatio();
  Object.assign(canvas, { width: Math.round(width * scale), height: Math.round(height * scale) });
  const pen = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  pen.scale(scale, scale);
  return pen;
}

/** @param {Element} node @param {MouseEvent} event @returns {Point} */
export function pointIn(node, { clientX, clientY }) {
  const { left, top } = node.getBoundingClientRect();
  return { x: clientX - left, y: clientY - top };
}

/** For tests, which wait for a picture. @param {HTMLElement} root */
export const countPicture = (root) => (root.dataset.drawn = String(Number(root.dataset.drawn || 0) + 1));

// -- the tooltip

export const newTip = () => el("div", { class: "mvt-tip", role: "tooltip", hidden: "" });

/** One line each: the first one's words are bold; what stands second in a line is never.
 * @param {(string | undefined)[][]} lines */
export const tipLines = (lines) => lines.map(([strong, soft], i) => el("div", {}, i ? strong || "" : el("b", {}, strong || ""), soft ? ` ${soft}` : ""));

/** Beside a point of a plot, on the side where there is room.
 * @param {HTMLElement} tip @param {Point} at @param {{ width: number, height: number }} room @param {HTMLElement[]} lines */
export function showTip(tip, at, room, lines) {
  tip.replaceChildren(...lines);
  tip.hidden = false;
  const beside = (/** @type {number} */ place, /** @type {number} */ size, /** @type {number} */ most) => (place + 14 + size > most ? Math.max(place - 14 - size, 0) : place + 14);
  tip.style.left = `${beside(at.x, tip.offsetWidth, room.width)}px`;
  tip.style.top = `${beside(at.y, tip.offsetHeight, room.height)}px`;
}

/** Of what the server was asked and did not give. @param {string} what @param {unknown} error */
export const refusalWords = (what, error) => `${what} (${error instanceof Error ? error.message : error}). Open the trace again.`;

// -- files

/** @param {Blob} file @param {string} name */
export function saveFile(file, name) {
  const link = el("a", { href: URL.createObjectURL(file), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

// -- the base class

let made = 0;

/** What stands in one of Gradio's elements. A subclass fills `root` in `build()`, and has `load(value)`. */
export class Component {
  /** @param {HTMLElement} host @param {Gradio} gradio */
  constructor(host, gradio) {
    /** Of its own on the page. */
    this.id = ++made;
    this.host = host;
    this.server = gradio.server;
    this.tell = gradio.tell;
    /** @type {HTMLElement} */ this.root = el("div");
    Object.assign(host, { memviz: this });
  }

  /** Once, when all fields are there. */
  build() {}

  /** Gradio redraws the host's template when the value changes; what we built is put back into it.
   * @returns {boolean} whether it had to be */
  attach() {
    if (this.host.contains(this.root)) return false;
    (this.host.querySelector(".mv-place") || this.host).append(this.root);
    return true;
  }

  /** @param {any} _value */
  load(_value) {}
}

/** As long as the server's own word on a trace may be an echo of what its timeline said here just before. */
const ECHO_MS = 3000;

/** What goes where the timeline of its trace goes. A subclass has `start(value)` and `follow(state)`. */
export class Follower extends Component {
  /** @type {string | null} */ key = null;
  /** When somebody in the browser said last what to show. */
  heard = -Infinity;

  build() {
    onSaid("memviz:state", (state) => state.key === this.key && this.hear(state));
  }

  /** @param {any} value */
  load(value) {
    this.root.hidden = !value || !value.key;
    if (!value || !value.key) this.key = null;
    else if (value.key !== this.key) this.start(value);
    else if (performance.now() - this.heard > ECHO_MS) this.follow(value);
  }

  /** @param {any} state */
  hear(state) {
    this.heard = performance.now();
    this.follow(state);
  }

  /** @param {any} _value */
  start(_value) {}

  /** @param {any} _state */
  follow(_state) {}
}

/** Of a class of components: what Gradio calls for each of its elements.
 * @template {Component} Kind
 * @param {new (host: HTMLElement, gradio: Gradio) => Kind} kind */
export const mounting = (kind) => (/** @type {HTMLElement} */ host, /** @type {Gradio} */ gradio) => {
  const component = new kind(host, gradio);
  component.build();
  const load = () => {
    const { value } = gradio.props;
    component.attach();
    component.load(typeof value === "string" ? (value ? JSON.parse(value) : null) : value);
  };
  gradio.watch("value", load);
  load();
  return component;
};
