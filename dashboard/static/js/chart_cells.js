/* The cells of a heatmap whose values stand for names. Sent as numbers with one list of names, meta.names, a long
 * timeline is a fifth as large as with a name in every cell.
 */

/* Gives each cell its name as customdata, for the words that appear over it. */
export function nameCells(data) {
  for (const trace of data) {
    const names = trace.meta?.names;
    if (names && trace.z) trace.customdata = trace.z.map((row) => row.map((value) => names[value]));
  }
}
