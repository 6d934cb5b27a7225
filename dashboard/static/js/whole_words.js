/* No line breaks at a hyphen, before the unit of a number or before the degree of TP 2: as the template filter
 * `whole_words` makes them. */

const UNIT = /(?:%|[mµn]?s|min|h|d|B|[KMGT]iB(?:\/s)?|[MGTP]?FLOP\/s|[kMGT])(?!\w)/;
const DEGREE = /(?:[DTP]P|micro-batch|interleaved) \d/;
const WORD = new RegExp(`[^ \\n]*(?:\\d ${UNIT.source}|${DEGREE.source})[^ \\n]*|[^ \\n]+`, "g");
const LONGEST = 24; // characters that always fit into a line on a phone

/* Makes `text` the content of a node. Markup instead of special characters, so that copied text is unchanged. */
export function setWholeWords(node, text) {
  const parts = (text.match(WORD) ?? []).flatMap((word) => [" ", whole(word)]);
  node.replaceChildren(...parts.slice(1));
}

function whole(word) {
  if (word.length > LONGEST || !/[- ]/.test(word)) return word;
  const span = document.createElement("span");
  span.className = "whole";
  span.textContent = word;
  return span;
}
