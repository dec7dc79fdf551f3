// @ts-check
// The pinned allocation in a saved page, as the page's inspector shows it, with what the file knows of it.
import { el } from "../components/base.js";
import { bytesText, grouped } from "../components/words.js";

/** @param {string} name @param {(Node | string)[]} value */
const fact = (name, ...value) => [el("dt", {}, name), el("dd", {}, ...value)];
/** @param {string} words */
const soft = (words) => el("span", { class: "mv-soft" }, words);
/** @param {number} event */
const eventLink = (event) => el("button", { type: "button", class: "mv-link", "data-mv-at": event, title: "Go to this event" }, grouped(event));

/** @param {any} found what is known of it @param {number} row @param {string | undefined} stackHtml made by the page's inspector, which escapes every text */
export function pinnedPanel(found, row, stackHtml) {
  const square = el("i", { class: "mv-kind mv-square", style: `--mv-light:${found.colour.light};--mv-dark:${found.colour.dark}`, "aria-hidden": "true" });
  const stack = el("div");
  if (stackHtml !== undefined) stack.innerHTML = stackHtml;
  else stack.append(soft("Its stack is not kept in this file."));
  const begin = found.first >= 0 ? ["event ", eventLink(found.first)] : ["before the first event"];
  const end = found.last < found.events ? eventLink(found.last) : "the end";
  const unpin = el("button", { type: "button", class: "mv-link", "data-mv-pin": row }, "Unpin ", el("kbd", {}, "Esc"));
  return el(
    "section",
    { class: "mv-pinned" },
    el("button", { type: "button", class: "mv-handle", "data-mv-sheet": "", "aria-label": "Taller or smaller" }),
    el("div", { class: "mv-aside-head" }, el("h2", {}, "Pinned allocation"), unpin),
    el("p", { class: "mv-figure" }, el("b", {}, bytesText(found.bytes)), ` in ${found.site}`),
    el("dl", { class: "mv-dl" }, ...fact("Asked", `${grouped(found.bytes)} B`), ...fact("Category", square, ` ${found.kind}`), ...fact("Lifetime", ...begin, " → ", end)),
    stack,
  );
}
