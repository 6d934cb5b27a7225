/* No line breaks at a hyphen, before the unit of a number or before the degree of TP 2, and names in Arabic or Hebrew apart
 * from numbers behind them: as the template filter `whole_words` makes them. */

const UNIT = /(?:%|[mµn]?s|min|h|d|B|[KMGT]iB(?:\/s)?|[MGTP]?FLOP\/s|[kMGT])(?!\w)/;
const DEGREE = /(?:[DTP]P|micro-batch|interleaved) \d/;
const WORD = new RegExp(`[^ \\n]*(?:\\d ${UNIT.source}|${DEGREE.source})[^ \\n]*|[^ \\n]+`, "g");
const RIGHT_TO_LEFT = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]/;
const LONGEST = 24; // characters that always fit into a line on a phone

/* Makes `text` the content of a node. Markup instead of special characters, so that copied text is unchanged. */
export function setWholeWords(node, text) {
  const parts = [];
  for (const word of text.match(WORD) ?? []) {
    if (!RIGHT_TO_LEFT.test(word)) parts.push(whole(word));
    else if (parts.at(-1)?.localName === "bdi") parts.at(-1).append(" ", whole(word));
    else parts[parts.push(document.createElement("bdi")) - 1].append(whole(word));
  }
  node.replaceChildren(...parts.flatMap((part) => [" ", part]).slice(1));
}

function whole(word) {
  if (word.length > LONGEST || !/[- ]/.test(word)) return word;
  const span = document.createElement("span");
  span.className = "whole";
  span.textContent = word;
  return span;
}
