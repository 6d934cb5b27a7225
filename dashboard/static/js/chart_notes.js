/* The text in place of a chart that has nothing to draw, or could not be drawn. */

import { forget } from "./chart_bars.js";
import { withdrawZoom } from "./chart_buttons.js";
import { note, reason } from "./chart_fetch.js";
import { unfollow } from "./chart_zoom.js";

/* Puts the text in place of the drawing. The library must let go of the box: it would draw later numbers into the
 * elements that are replaced here, unseen. Without a picture the box is none: a reader would hear nothing but its name. */
function replaceDrawing(box, text, ...classes) {
  const note = document.createElement("p");
  note.classList.add("empty", "small", ...classes);
  note.textContent = text;
  forget(box);
  unfollow(box);
  withdrawZoom(box);
  window.Plotly?.purge(box);
  box.replaceChildren(note);
  box.removeAttribute("role");
  box.removeAttribute("aria-label");
}

document.addEventListener("chartdrawn", ({ target }) => {
  const box = target.querySelector(".chart-box");
  box.setAttribute("role", "img");
  box.setAttribute("aria-label", target.querySelector("figcaption").textContent);
});

export function empty(box, text) {
  replaceDrawing(box, text ?? "Nothing to draw: there are no numbers so far.");
}

export function failed(element, error) {
  if (!error.sentence) console.warn(error); // unforeseen, so that its own words are for whoever mends it
  const text = `This chart could not be shown. ${reason(error)} Reload the page to try again.`;
  const caption = element.querySelector("figcaption");
  if (caption.dataset.wait === caption.textContent) caption.textContent = "Chart not shown"; // it said what was under way
  note(element);
  note(element, "", "scale");
  replaceDrawing(element.querySelector(".chart-box"), text, "failed");
}
