// @ts-check
// A double click on the name of an open trace, or F2 while it is in focus, renames it in place. Enter and leaving the
// field keep the new name, Escape the old one; without a name it has that of its file again.
import { el, nearest } from "../components/base.js";

const ROW = '#traces [data-act="choose"]';
const MOST_LETTERS = 80;

/** The field lies over the list, which an answer may draw anew meanwhile.
 * @param {HTMLElement} row */
function rename({ title, dataset: { key = "" } }) {
  const row = () => /** @type {HTMLElement | null} */ (document.querySelector(`${ROW}[data-key="${CSS.escape(key)}"]`));
  const name = row()?.querySelector("b");
  if (!name) return;
  const { left, top, width } = name.getBoundingClientRect();
  const field = el("input", { type: "text", class: "mv-rename", value: title, maxlength: MOST_LETTERS, "aria-label": `New name of ${title}` });
  Object.assign(field.style, { left: `${left - 5}px`, top: `${top - 4}px`, width: `${width}px` });
  // It loses the focus too as it is taken away.
  let isOver = false;
  const end = (/** @type {boolean} */ isKept) => {
    if (isOver) return;
    isOver = true;
    const told = el("button", { type: "button", hidden: "", "data-act": "rename", "data-key": key, "data-name": field.value });
    field.remove();
    row()?.focus();
    if (!isKept || field.value === title) return;
    // The list tells of what is pressed in it.
    document.querySelector("#traces .mv-traces")?.append(told);
    told.click();
    told.remove();
  };
  field.addEventListener("blur", () => end(true));
  field.addEventListener("keydown", (event) => {
    event.stopPropagation();
    if (event.key === "Enter" || event.key === "Escape") end(event.key === "Enter");
  });
  document.body.append(field);
  field.select();
}

export function listenToNames() {
  document.addEventListener("dblclick", (event) => {
    const row = nearest(event, ROW);
    if (row && nearest(event, "b")) rename(row);
  });
  document.addEventListener("keydown", (event) => {
    const row = event.key === "F2" ? nearest(event, ROW) : null;
    if (row) rename(row);
  });
}
