/* Scrolls rows of links (the rail and the tabs on a phone) to the link of the current page. */

function show(link) {
  const row = link.parentElement;
  const over = link.getBoundingClientRect().right - row.getBoundingClientRect().right;
  if (row.scrollWidth > row.clientWidth && over > 0) row.scrollLeft += over + 32; // shows a part of the next link
}

for (const link of document.querySelectorAll("nav [aria-current]")) show(link);
