// The planner's pages: a click on a point of the scatter chart chooses its plan.
// Without this file plans can be chosen by links in the table, or typed.

import "./live.js";
import "./searches.js";
import "./wrong_fields.js";

const form = document.querySelector("#planner-form");

function plain(label) {
  const text = document.createElement("textarea");
  text.innerHTML = label; // Plotly's names are HTML; a textarea only decodes them
  return text.value;
}

/* Sets the form's plan to a clicked point. Listeners are added after drawing, as Plotly only then has its events. */
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

/* Leaves empty fields out of the address. */
document.body.addEventListener("htmx:configRequest", ({ detail }) => {
  if (!detail.elt.closest("#planner-form, #judge-form, #fleet-form")) return;
  for (const name of Object.keys(detail.parameters)) {
    if (detail.parameters[name] === "") delete detail.parameters[name];
  }
});

/* An empty field shows what it stands for: the value of the preset that is chosen now. */
document.body.addEventListener("htmx:afterSwap", () => {
  for (const { dataset, textContent } of document.querySelectorAll("#result [data-stands-for]")) {
    const field = document.getElementById(dataset.standsFor);
    if (field?.matches("input")) field.placeholder = textContent;
  }
});

/* Plans are searched when a field is left: a search takes long. What the browser itself finds wrong takes none, so it is
 * refused while somebody still writes; and so is what was refused asked again once it is right. */
const WRITES_MS = 400;
let written = null;
form?.addEventListener("input", ({ target }) => {
  clearTimeout(written);
  const refused = () => !target.validity.valid || target.getAttribute("aria-invalid") === "true";
  written = setTimeout(() => refused() && target.dispatchEvent(new Event("change", { bubbles: true })), WRITES_MS);
});
