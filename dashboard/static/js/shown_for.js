// Shows a field only beside the values it belongs to: data-shown-for="<name of another field> <its values>".
// Without this file all stand there; the server reads those that count.

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
