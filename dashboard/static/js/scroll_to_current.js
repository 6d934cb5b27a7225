/* Scrolls rows of links (the rail and the tabs on a phone) to the link of the current page. */

const FADE = 32; // px at the end of a row, as in trainyard.css

function show(link) {
  const row = link.parentElement;
  const over = link.getBoundingClientRect().right - (row.getBoundingClientRect().right - FADE);
  if (row.scrollWidth > row.clientWidth && over > 0) row.scrollLeft += over; // a part of the next link is in the fade
}

for (const link of document.querySelectorAll("nav [aria-current]")) show(link);
