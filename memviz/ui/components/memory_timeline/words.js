// Words for bytes and times, exactly as memviz/units.py writes them, and the ticks of axes; a test holds the two together.
(() => {
  "use strict";
  const [KIB, MIB, GIB, TIB] = [1024, 1024 ** 2, 1024 ** 3, 1024 ** 4];

  /** Rounded to the nearest, and half-way to the even digit as Python does: `toFixed` takes the upper one there. */
  function grouped(value, digits = 0) {
    const size = Math.abs(value);
    let text = size.toFixed(digits);
    // Only odd multiples of 1/2, 1/4, 1/8 stand half-way between two texts of 0, 1, 2 digits.
    const isHalfWay = (size * 2 ** (digits + 1)) % 2 === 1;
    if (isHalfWay && "13579".includes(text.slice(-1))) text = ((Math.round(text * 10 ** digits) - 1) / 10 ** digits).toFixed(digits);
    return (value < 0 ? "-" : "") + text.replace(/\B(?<!\.\d*)(?=(\d{3})+(?!\d))/g, ",");
  }

  function threeDigits(value) {
    return grouped(value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0);
  }

  function bytesText(count) {
    const size = Math.abs(count);
    const sign = count < 0 ? "-" : "";
    if (size < KIB) return `${sign}${Math.trunc(size)} B`;
    if (size >= 10 * TIB) return `${sign}${grouped(size / TIB, 2)} TiB`;
    if (size >= 10 * GIB) return `${sign}${grouped(size / GIB, 2)} GiB`;
    if (size < MIB && Math.round(size / KIB) < 1024) return `${sign}${threeDigits(size / KIB)} KiB`;
    return `${sign}${threeDigits(Math.max(size / MIB, 1))} MiB`;
  }

  function durationText(us) {
    if (us < 1e3) return `${Math.round(us)} µs`;
    if (us < 999500) return `${threeDigits(us / 1e3)} ms`;
    return `${grouped(us / 1e6, 2)} s`;
  }

  /** What is counted in whole pieces, as events are, has no tick between two of them. */
  function roundStep(rough, least) {
    const wanted = Math.max(rough, least);
    const scale = 10 ** Math.floor(Math.log10(wanted));
    const steps = [1, 2, 2.5, 5, 10].map((each) => each * scale);
    return steps.find((each) => each >= wanted && (least < 1 || Number.isInteger(each)));
  }

  /** Round multiples (1, 2, 2.5, 5 x 10^n) of one unit; the unit stands on the top tick only. */
  function byteTicks(top) {
    const power = Math.min(Math.max(Math.floor(Math.log2(Math.max(top / 2, 1)) / 10), 0), 5);
    const unit = 1024 ** power;
    const step = roundStep(top / unit / 5, power ? 0.1 : 1);
    const ticks = [];
    for (let k = 0; k * step * unit <= top; k++) ticks.push({ value: k * step * unit, text: grouped(k * step, step % 1 ? 1 : 0) });
    ticks[ticks.length - 1].text += ` ${["B", "KiB", "MiB", "GiB", "TiB", "PiB"][power]}`;
    return ticks;
  }

  /** A tick on an axis of µs whose ticks are `step` apart: with as many digits as two neighbours need to differ. */
  function timeTick(us, step) {
    const [unit, name] = Math.abs(us) >= 1e6 ? [1e6, "s"] : Math.abs(us) >= 1e3 ? [1e3, "ms"] : [1, "µs"];
    let digits = 0;
    const isWhole = (value) => Math.abs(value - Math.round(value)) < 1e-6 * Math.max(value, 1);
    while (digits < 9 && !isWhole((step / unit) * 10 ** digits)) digits++;
    return `${grouped(us / unit, digits)} ${name}`;
  }

  globalThis.memvizWords = { grouped, bytesText, durationText, byteTicks, timeTick, roundStep };
})();
