// The planner's pages: a plan of the scatter is chosen with a click.
// Without this file all of it still works: plans are links in the table, and can be typed.

import "./live.js";
import "./searches.js";
import "./wrong_fields.js";

const form = document.querySelector("#planner-form");

function plain(label) {
  const text = document.createElement("textarea");
  text.innerHTML = label; // Plotly is given names as HTML; a textarea only decodes them
  return text.value;
}

/* A picked point becomes the plan that the form asks about. Plotly adds its events when it draws. */
function listen(box) {
  if (!box.on || box.dataset.picks) return;
  box.dataset.picks = "yes";
  box.on("plotly_click", ({ points }) => {
    const label = points[0]?.customdata;
    if (!label || !form) return;
    form.querySelector('[name="plan"]').value = plain(label);
    form.requestSubmit();
  });
}

new MutationObserver(() => {
  for (const box of document.querySelectorAll("[data-picks-plan] .js-plotly-plot")) listen(box);
}).observe(document.querySelector("main"), { childList: true, subtree: true });

/* An address holds what was asked: fields left empty stay out of it. */
document.body.addEventListener("htmx:configRequest", ({ detail }) => {
  if (!detail.elt.closest("#planner-form, #judge-form")) return;
  for (const name of Object.keys(detail.parameters)) {
    if (detail.parameters[name] === "") delete detail.parameters[name];
  }
});
