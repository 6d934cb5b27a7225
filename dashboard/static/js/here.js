/* Rows of links that scroll (the rail and the tabs of a phone) begin where the page that is shown stands in them. */

function show(link) {
  const row = link.parentElement;
  const over = link.getBoundingClientRect().right - row.getBoundingClientRect().right;
  if (row.scrollWidth > row.clientWidth && over > 0) row.scrollLeft += over + 32; // and a part of what comes next
}

for (const link of document.querySelectorAll("nav [aria-current]")) show(link);
