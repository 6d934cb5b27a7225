/* Updates a part of a page while keeping its elements: one that is being clicked, focused, read out or opened stays the
 * same element. (If a button is replaced during a click, the click is lost.) What the user opened, ticked or typed
 * stays, and a select[data-grows] that is not in use gets its new options; a chart with unchanged numbers stays as
 * drawn. Charts have ids, so that one is never updated from another.
 */

import { Idiomorph } from "../vendor/idiomorph-0.7.4.esm.js";

const figure = (chart) => chart.querySelector("script[type='application/json']")?.textContent;
const isElement = (node) => node.nodeType === Node.ELEMENT_NODE;

/* Gives a list of choices its new ones; what is chosen stays, if it is still among them. */
function grow(old, fresh) {
  const { value } = old;
  old.replaceChildren(...fresh.cloneNode(true).children);
  old.value = value;
  if (old.selectedIndex < 0) old.value = fresh.value;
}

/* Plotly's elements are not in the server's HTML: charts.js updates a chart. */
function node(old, fresh) {
  if (!isElement(old)) return true;
  if (old.matches("select[data-grows]") && fresh.matches("select") && old !== document.activeElement) grow(old, fresh);
  if (old.matches("input:not([type=hidden]), select, textarea")) return false;
  if (!old.matches(".chart[data-chart]")) return true;
  if (figure(old) !== figure(fresh)) {
    old.dispatchEvent(new CustomEvent("chartnews", { bubbles: true, detail: fresh.cloneNode(true) }));
  }
  return false;
}

function attribute(name, element) {
  return !(name === "open" && element.matches("details, dialog"));
}

/* The element with this id of a page or part that a fetch was answered with, or null. */
export async function elementOf(answer, id) {
  return new DOMParser().parseFromString(await answer.text(), "text/html").getElementById(id);
}

/* style: "outerHTML" or "innerHTML" */
export function morph(old, fresh, style = "outerHTML") {
  Idiomorph.morph(old, style === "innerHTML" ? [...fresh.childNodes] : fresh, {
    morphStyle: style,
    callbacks: { beforeNodeMorphed: node, beforeAttributeUpdated: attribute },
  });
  document.dispatchEvent(new CustomEvent("morphed"));
}
