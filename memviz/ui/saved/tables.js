// @ts-check
// The tables of a saved page, sorted by a column; what is summed up stays at the end.

const sorted = { name: "bytes", rising: false };

/** @param {HTMLElement} button in a head */
export function sortBy(button) {
  const name = button.dataset.value || "";
  sorted.rising = name === sorted.name ? !sorted.rising : ["name", "category"].includes(name);
  sorted.name = name;
  sortTables();
}

export function sortTables() {
  for (const table of /** @type {NodeListOf<HTMLTableElement>} */ (document.querySelectorAll("#live-set .mv-groups"))) {
    const heads = [...(table.tHead?.rows[0].cells || [])];
    const column = heads.findIndex((head) => head.querySelector(`[data-value="${sorted.name}"]`));
    if (column >= 0) sortTable(table, heads, column);
  }
}

/** @param {HTMLTableElement} table @param {HTMLTableCellElement[]} heads @param {number} column */
function sortTable(table, heads, column) {
  heads.forEach((head, i) => markHead(head, i === column));
  const isNumber = heads[column].classList.contains("mv-number");
  const order = sorted.rising ? 1 : -1;
  const movable = [...table.tBodies[0].rows].filter((row) => row.querySelector("[data-keep]"));
  const ordered = movable
    .map((row) => ({ row, value: valueOf(row.cells[column], isNumber) }))
    .sort((a, b) => (a.value < b.value ? -order : a.value > b.value ? order : 0));
  table.tBodies[0].prepend(...ordered.map(({ row }) => row));
}

/** @param {HTMLTableCellElement} head @param {boolean} isSorted */
function markHead(head, isSorted) {
  const button = head.querySelector("[data-act=sort]");
  if (!button) return;
  const arrow = sorted.rising ? " ↑" : " ↓";
  button.textContent = (button.textContent || "").replace(/ [↑↓]$/, "") + (isSorted ? arrow : "");
  if (isSorted) head.setAttribute("aria-sort", sorted.rising ? "ascending" : "descending");
  else head.removeAttribute("aria-sort");
}

/** Figures by every digit, which stand in the title of the rounded ones.
 * @param {HTMLTableCellElement} cell @param {boolean} isNumber */
function valueOf(cell, isNumber) {
  const exact = /** @type {HTMLElement | null} */ (cell.querySelector("span[title]"));
  const words = exact?.title || cell.textContent || "";
  if (isNumber) return Number(words.replace(/[^\d.-]/g, ""));
  return (cell.querySelector(".mv-name")?.textContent || words).toLowerCase().trim();
}
