/* On phones, the lower sections of a page (details[data-phone-closed]), and of a part that htmx puts into it, begin
 * closed; on wide screens all are open.
 *
 * What the address or a link leads to is opened, and the sections that it is in.
 */

function target(hash) {
  return hash.length > 1 ? document.getElementById(hash.slice(1)) : null;
}

/* Returns whether any section had to be opened for the element to be seen. */
function reveal(element) {
  let opened = false;
  for (let at = element?.closest("details"); at; at = at.parentElement.closest("details")) {
    opened ||= !at.open;
    at.open = true;
  }
  return opened;
}

/* The browser has scrolled there before it was opened. */
function show(element) {
  if (reveal(element)) element.scrollIntoView();
}

function fold(part) {
  if (!window.matchMedia("(max-width: 760px)").matches) return;
  for (const section of part.querySelectorAll("details.accordion[data-phone-closed]")) section.open = false;
}

fold(document);
/* Those that were open before are opened again after this: keep_details_open.js. */
document.addEventListener("htmx:afterSwap", ({ detail }) => fold(detail.target));
show(target(location.hash));
addEventListener("hashchange", () => show(target(location.hash)));

/* A link to where the address leads already changes no hash. The browser scrolls after this. */
document.addEventListener("click", (event) => {
  const link = event.target.closest?.('a[href^="#"]');
  if (link) reveal(target(link.hash));
});
