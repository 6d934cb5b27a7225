/* While the connection is lost, a link is followed only if the yard answers: else the browser's own page of an error
 * would take the place of what was being read. What was tried is said in the note of the lost connection.
 *
 *   const linger = stay((words) => { ... });   // called with what to say in place of a page
 *   linger(true);                              // the connection is lost
 *
 * The links of a connected page are left alone.
 */

const LIMIT_MS = 5000;

/* The link that a click would follow in this window to another page of the yard; null if it does anything else. */
function followed(event) {
  const link = event.target.closest?.("a[href]");
  if (!link || event.defaultPrevented || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return null;
  if (link.target || link.hasAttribute("download") || link.origin !== location.origin) return null;
  const inside = link.hash && link.pathname === location.pathname && link.search === location.search;
  return inside ? null : link;
}

/* Whether the server answers at all, asked for this small file. */
async function answers() {
  try {
    const limit = AbortSignal.timeout(LIMIT_MS);
    return (await fetch(import.meta.url, { method: "HEAD", cache: "no-store", signal: limit })).status < 500;
  } catch {
    return false;
  }
}

export function stay(say) {
  let lost = false;
  let asked = 0;
  // On the window: after the scripts of the page, for which a link may open a dialog or change its address.
  window.addEventListener("click", async (event) => {
    const link = lost ? followed(event) : null;
    if (!link) return;
    event.preventDefault();
    const mine = ++asked;
    const there = await answers();
    if (mine !== asked) return; // another link was clicked meanwhile
    if (there) location.assign(link.href);
    else say(`The yard could not be reached, so “${link.textContent.trim()}” was not opened and this page stays. Try again in a moment.`);
  });
  return (value) => {
    lost = value;
  };
}
