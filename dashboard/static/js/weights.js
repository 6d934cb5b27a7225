// The New run form: choosing weights to begin from fills in the fields of their model, and a corpus of its tokens.
// Without this file the form still works: each field that differs from the weights is named with both values.

const form = document.querySelector("#run-form");
const models = JSON.parse(document.querySelector("#weights-models")?.textContent ?? "{}");
const chosen = form.elements.train__weights;

function fill() {
  for (const [name, value] of Object.entries(models[chosen.value] ?? {})) {
    const input = form.elements[name];
    if (!input || (name === "train__corpus" && input.value.startsWith("tokens:"))) continue; // a file chosen stays
    if (input.type === "checkbox") input.checked = value;
    else input.value = value;
    input.dispatchEvent(new Event("change", { bubbles: true })); // shows the fields that apply, and checks the form
  }
}

chosen.addEventListener("change", fill);
