/* No line breaks at a hyphen, before the unit of a number or before the degree of TP 2, and names in Arabic or Hebrew apart
 * from numbers behind them: as the template filter `whole_words` makes them. */

const UNIT = /(?:%|[mµn]?s|min|h|d|B|[KMGT]iB(?:\/s)?|[MGTP]?FLOP\/s|[kMGT])(?!\w)/;
const DEGREE = /(?:[DTP]P|micro-batch|interleaved) \d/;
const WORD = new RegExp(`[^ \\n]*(?:\\d ${UNIT.source}|${DEGREE.source})[^ \\n]*|[^ \\n]+`, "g");
const RIGHT_TO_LEFT = /[^ \n]*[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc][^ \n]*/.source;
const NAME = new RegExp(`(${RIGHT_TO_LEFT}(?: (?:\\d+ )*${RIGHT_TO_LEFT})*)`); // with the numbers between two of its words
const LONGEST = 24; // characters that always fit into a line on a phone

/* Makes `text` the content of a node. Markup instead of special characters, so that copied text is unchanged. */
export function setWholeWords(node, text) {
  const parts = text.split(NAME).flatMap((part, place) => {
    const words = (part.match(WORD) ?? []).map(whole);
    if (place % 2 === 0) return words;
    const name = document.createElement("bdi");
    name.append(...words.flatMap((word) => [" ", word]).slice(1));
    return [name];
  });
  node.replaceChildren(...parts.flatMap((part) => [" ", part]).slice(1));
}

function whole(word) {
  if (word.length > LONGEST || !/[- ]/.test(word)) return word;
  const span = document.createElement("span");
  span.className = "whole";
  span.textContent = word;
  return span;
}
