/* Brings a part of a page to its newer self without replacing what stays: an element that is being clicked, focused,
 * read out or laid open is the same element afterwards. (A replaced button swallows the click whose press met its
 * predecessor.) What the reader opened, ticked or typed stays; a chart of the same numbers stays as it is drawn.
 * Charts have ids, so that one never becomes another.
 */

import { Idiomorph } from "../vendor/idiomorph-0.7.4.esm.js";

const figure = (chart) => chart.querySelector("script[type='application/json']")?.textContent;
const isElement = (node) => node.nodeType === Node.ELEMENT_NODE;

/* Plotly's own elements are not in the server's text: charts.js takes what is new of a chart. */
function node(old, fresh) {
  if (!isElement(old)) return true;
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

/* style: "outerHTML" or "innerHTML" */
export function morph(old, fresh, style = "outerHTML") {
  Idiomorph.morph(old, style === "innerHTML" ? [...fresh.childNodes] : fresh, {
    morphStyle: style,
    callbacks: { beforeNodeMorphed: node, beforeAttributeUpdated: attribute },
  });
}
