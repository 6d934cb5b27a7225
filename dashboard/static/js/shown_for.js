// Shows a field only for certain values of another: data-shown-for="<name of the other field> <its values>".
// Without this file all are shown; the server ignores those that do not apply.

const dependents = [...document.querySelectorAll("[data-shown-for]")].map((input) => {
  const [name, ...values] = input.dataset.shownFor.split(" ");
  return { field: input.closest(".field"), source: document.querySelector(`[name="${name}"]`), values };
});

const valueOf = (source) => (source.type === "checkbox" ? String(source.checked) : source.value);

function show() {
  for (const { field, source, values } of dependents) field.hidden = source !== null && !values.includes(valueOf(source));
  for (const folded of document.querySelectorAll("details.accordion"))
    folded.hidden = [...folded.querySelectorAll(".field")].every((field) => field.hidden);
}

for (const source of new Set(dependents.map((one) => one.source))) source?.addEventListener("change", show);
show();
