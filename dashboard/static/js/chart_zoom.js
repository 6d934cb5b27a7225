/* What a long timeline is zoomed to: asked for again, and held in the page's address. */

/* A figure with meta.window shows a part of many: what is zoomed to is asked for again, the newest question wins. */
export function followZoom(entry, update) {
  if (!entry.figure.layout.meta?.window || entry.follows) return;
  entry.follows = true;
  let asked = 0;
  entry.box.on("plotly_relayout", async (change) => {
    const src = entry.figure.layout.meta?.window;
    if (!src || !Object.keys(change).some((name) => name.startsWith("xaxis."))) return;
    const mine = ++asked;
    try {
      const answer = await fetch(src + part(entry), { headers: { Accept: "application/json" } });
      if (answer.status === 404) return location.reload(); // deleted: the page says so
      if (!answer.ok) throw new Error(`The server answered ${answer.status}.`);
      const chart = await answer.json();
      if (mine !== asked) return;
      await update({ [entry.element.dataset.chart]: chart });
      note(entry);
    } catch (error) {
      note(entry, `This part could not be fetched: ${error.message} What is drawn is of the zoom before; zoom again to try once more.`);
    }
  });
}

/* Words under the chart; none: what stood there goes. */
function note(entry, words) {
  entry.element.querySelector(":scope > .zoom-note")?.remove();
  if (!words) return;
  const said = document.createElement("p");
  said.className = "notice warning small zoom-note";
  said.setAttribute("role", "status");
  said.textContent = words;
  entry.box.after(said);
}

/* A figure with meta.addressed is zoomed to ?from= and ?to= of the page's address, and writes there what it is zoomed to. */
export function followAddress(entry) {
  if (!entry.figure.layout.meta?.addressed || entry.addressed) return;
  entry.addressed = true;
  const asked = new URLSearchParams(location.search);
  const [low, high] = ["from", "to"].map((name) => Number.parseFloat(asked.get(name)));
  entry.box.on("plotly_relayout", (change) => {
    if (!Object.keys(change).some((name) => name.startsWith("xaxis."))) return;
    const url = new URL(location.href);
    const shown = new URLSearchParams(part(entry));
    for (const name of ["from", "to"]) {
      if (shown.has(name)) url.searchParams.set(name, String(Number(Number(shown.get(name)).toFixed(4))));
      else url.searchParams.delete(name);
    }
    history.replaceState(history.state, "", url);
  });
  if (low < high) window.Plotly.relayout(entry.box, { "xaxis.range": [low, high] });
}

/* New numbers do not move the reader: the axis of a figure stays where it is, be it that a person dragged it there or that
 * the address did. `entry.full` = the axis of the figure that stood there before. */
export function stay(entry, { meta, xaxis }) {
  if (!meta?.addressed) return;
  const now = entry.box.layout?.xaxis?.range?.map(Number);
  const { full } = entry;
  entry.full = [...xaxis.range];
  if (now && full && (now[0] > full[0] || now[1] < full[1])) xaxis.range = now;
}

/* The part of the axis that is zoomed to, as the end of an address; "" where all of it is shown. */
export function part({ box, figure }) {
  const [low, high] = box.layout.xaxis.range.map(Number);
  const [first, last] = figure.layout.xaxis.range;
  return low <= first && high >= last ? "" : `&from=${low}&to=${high}`;
}
