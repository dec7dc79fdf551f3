// @ts-check
// Words for bytes, times and counts, exactly as memviz/units.py writes them, and the ticks of axes; a test holds the two
// together. No DOM in this file.

const [KIB, MIB, GIB, TIB] = [1024, 1024 ** 2, 1024 ** 3, 1024 ** 4];
const MINUS = "−";

/** Rounded to the nearest, and half-way to the even digit as Python does: `toFixed` takes the upper one there.
 * @param {number} value @param {number} [digits] */
export function grouped(value, digits = 0) {
  const size = Math.abs(value);
  let text = size.toFixed(digits);
  // Only odd multiples of 1/2, 1/4, 1/8 stand half-way between two texts of 0, 1, 2 digits.
  const isHalfWay = (size * 2 ** (digits + 1)) % 2 === 1;
  if (isHalfWay && "13579".includes(text.slice(-1))) text = ((Math.round(Number(text) * 10 ** digits) - 1) / 10 ** digits).toFixed(digits);
  return (value < 0 ? MINUS : "") + text.replace(/\B(?<!\.\d*)(?=(\d{3})+(?!\d))/g, ",");
}

/** @param {number} value */
function threeDigits(value) {
  return grouped(value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0);
}

/** @param {number} count */
export function bytesText(count) {
  const size = Math.abs(count);
  const sign = count < 0 ? MINUS : "";
  if (size < KIB) return `${sign}${Math.trunc(size)} B`;
  if (size >= 10 * TIB) return `${sign}${grouped(size / TIB, 2)} TiB`;
  if (size >= 10 * GIB) return `${sign}${grouped(size / GIB, 2)} GiB`;
  if (size < MIB && Math.round(size / KIB) < 1024) return `${sign}${threeDigits(size / KIB)} KiB`;
  return `${sign}${threeDigits(Math.max(size / MIB, 1))} MiB`;
}

/** A change always shows its direction. @param {number} count */
export const deltaText = (count) => (count < 0 ? bytesText(count) : `+${bytesText(count)}`);

/** @param {number} us */
export function durationText(us) {
  if (us < 1e3) return `${Math.round(us)} µs`;
  if (us < 999500) return `${threeDigits(us / 1e3)} ms`;
  return `${grouped(us / 1e6, 2)} s`;
}

/** -1 is the state before the first one. @param {number} event */
export const eventText = (event) => (event < 0 ? "before the first event" : `event ${grouped(event)}`);

/** What is too long loses its middle: names mostly differ at their ends.
 * @param {string} text @param {number} most */
export function cutMiddle(text, most) {
  const letters = [...text];
  if (letters.length <= most) return text;
  const head = Math.floor((most - 1) / 2);
  return `${letters.slice(0, head).join("")}…${letters.slice(letters.length - (most - 1 - head)).join("")}`;
}

// -- ticks

/** Of a unit of bytes, between two ticks. */
const LEAST_STEP = 0.1;

/** What is counted in whole pieces, as events are, has no tick between two of them.
 * @param {number} rough @param {number} least @returns {number} */
export function roundStep(rough, least) {
  const wanted = Math.max(rough, least);
  const scale = 10 ** Math.floor(Math.log10(wanted));
  const steps = [1, 2, 2.5, 5, 10].map((digit) => digit * scale);
  return steps.find((step) => step >= wanted && (least < 1 || Number.isInteger(step))) ?? 10 * scale;
}

/** Of what lies between two heights. Where neighbours would differ in more digits than there is room for, they count
 * from a round height below them, which is then said by itself.
 * @param {number} bottom @param {number} top @returns {{ from: number, ticks: { value: number, text: string }[] }} */
export function byteTicksBetween(bottom, top) {
  const span = top - bottom;
  const unit = byteUnit(top);
  if (bottom <= 0 || span / unit.bytes / 5 >= (unit.power ? LEAST_STEP : 1)) return { from: 0, ticks: ticksOf(bottom, top, unit) };
  const round = 2 ** (Math.ceil(Math.log2(span)) + 1);
  const from = Math.floor(bottom / round) * round;
  const ticks = ticksOf(bottom - from, top - from, byteUnit(2 * span));
  return { from, ticks: ticks.map(({ value, text }) => ({ value: from + value, text: `+${text}` })) };
}

/** In which a height is counted. @param {number} top */
function byteUnit(top) {
  const power = Math.min(Math.max(Math.floor(Math.log2(Math.max(top / 2, 1)) / 10), 0), 5);
  return { power, bytes: 1024 ** power, name: ["B", "KiB", "MiB", "GiB", "TiB", "PiB"][power] };
}

/** Round multiples (1, 2, 2.5, 5 x 10^n) of one unit; the unit stands on the top tick only.
 * @param {number} bottom @param {number} top @param {{ power: number, bytes: number, name: string }} unit */
function ticksOf(bottom, top, { power, bytes, name }) {
  const rough = roundStep((top - bottom) / bytes / 5, power ? LEAST_STEP : 1);
  // One digit behind the point is all there is room for.
  const step = power && rough === 0.25 ? 0.5 : rough;
  const ticks = [];
  for (let k = Math.ceil(bottom / (step * bytes)); k * step * bytes <= top; k++) {
    ticks.push({ value: k * step * bytes, text: grouped(k * step, step % 1 ? 1 : 0) });
  }
  if (ticks.length) ticks[ticks.length - 1].text += ` ${name}`;
  return ticks;
}

/** A tick on an axis of µs whose ticks are `step` apart: with as many digits as two neighbours need to differ.
 * @param {number} us @param {number} step */
export function timeTick(us, step) {
  const [unit, name] = Math.abs(us) >= 1e6 ? [1e6, "s"] : Math.abs(us) >= 1e3 ? [1e3, "ms"] : [1, "µs"];
  let digits = 0;
  const isWhole = (/** @type {number} */ value) => Math.abs(value - Math.round(value)) < 1e-6 * Math.max(value, 1);
  while (digits < 9 && !isWhole((step / unit) * 10 ** digits)) digits++;
  return `${grouped(us / unit, digits)} ${name}`;
}
