// The planner's pages: a plan of the scatter is chosen with a click, and fields with a message are marked as invalid.
// Without this file all of it still works: plans are links in the table, and can be typed.

import "./live.js";
import "./searches.js";

const form = document.querySelector("#planner-form");

function mark() {
  for (const field of document.querySelectorAll(".field")) {
    const wrong = Boolean(field.querySelector(".error")?.textContent.trim());
    field.classList.toggle("has-error", wrong);
    for (const input of field.querySelectorAll("input, select")) {
      if (wrong) input.setAttribute("aria-invalid", "true");
      else input.removeAttribute("aria-invalid");
    }
  }
}

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

mark();
document.body.addEventListener("htmx:afterSettle", mark);

/* An address holds what was asked: fields left empty stay out of it. */
document.body.addEventListener("htmx:configRequest", ({ detail }) => {
  if (!detail.elt.closest("#planner-form, #judge-form")) return;
  for (const name of Object.keys(detail.parameters)) {
    if (detail.parameters[name] === "") delete detail.parameters[name];
  }
});
