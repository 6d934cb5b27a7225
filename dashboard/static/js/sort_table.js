/* Sorts a table in its place: <a class="sort" data-part="table"> leads to the same page in another order, of which only
 * the element with that id is taken. The order stands in the page's address, as that of a page loaded anew. */

import { elementOf, morph } from "./morph.js";
import { check, get } from "./refetch.js";

async function sort({ href, dataset: { part } }) {
  history.replaceState(history.state, "", href); // before the answer: live updates ask for the order in the address
  const answer = await get(href);
  check(answer);
  const fresh = await elementOf(answer, part);
  if (!fresh) location.assign(href); // signed out: the page says so
  else if (location.href === href) morph(document.getElementById(part), fresh, "innerHTML");
}

document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a.sort[data-part]");
  if (!link || event.defaultPrevented || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  sort(link).catch(() => location.assign(link.href));
});
