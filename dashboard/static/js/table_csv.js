/* Saves the numbers of the table before a clicked [data-table-csv] as CSV, as they stand on the page. */

const LEFT_OUT = ".visually-hidden, .step-link, [aria-hidden=true], button, input"; // of a cell: what is no number of it
const SIGNED = /^[+-]\d[\d. ]*( ?[%\p{L}]{1,8})?$/u; // a number with its sign, and maybe a unit

/* With an apostrophe before what a spreadsheet would run as a formula, as dashboard/csv_cells.py does. */
const harmless = (text) => (/^[=+\-@]/.test(text) && !SIGNED.test(text) ? `'${text}` : text);

const quoted = (text) => (/[",;\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);

function textOf(cell) {
  const copy = cell.cloneNode(true);
  copy.querySelectorAll(LEFT_OUT).forEach((node) => node.remove());
  copy.querySelectorAll("br").forEach((node) => node.replaceWith("\n"));
  return copy.textContent.split("\n").map((line) => line.replace(/\s+/g, " ").trim()).filter(Boolean).join("; ");
}

const lineOf = (row) => [...row.cells].flatMap((cell) => [quoted(harmless(textOf(cell))), ...Array(cell.colSpan - 1).fill("")]).join(",");

function save(button) {
  const before = (table) => table.compareDocumentPosition(button) & Node.DOCUMENT_POSITION_FOLLOWING;
  const table = [...document.querySelectorAll("table")].findLast(before);
  const name = button.closest("[data-chart]")?.dataset.chart ?? table.closest("[aria-label]").getAttribute("aria-label");
  const lines = [...table.rows].map((row) => `${lineOf(row)}\r\n`);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob(["\ufeff", ...lines], { type: "text/csv" })); // the mark is for spreadsheets
  link.download = `${document.title.split(" · ")[0]} ${name}.csv`.replace(/[^\p{L}\p{N} ._-]/gu, "");
  link.click();
  URL.revokeObjectURL(link.href);
}

document.addEventListener("click", ({ target }) => {
  const button = target.closest("[data-table-csv]");
  if (button) save(button);
});
