// Shows a field only for certain values of another: data-shown-for="<name of the other field> <its values>", or for all
// others: data-shown-for="<name> not <values>".
// Without this file all are shown; the server ignores those that do not apply.

const dependents = [...document.querySelectorAll("[data-shown-for]")].map((input) => {
  const [name, ...words] = input.dataset.shownFor.split(" ");
  const negated = words[0] === "not";
  const values = negated ? words.slice(1) : words;
  return { field: input.closest(".field"), source: document.querySelector(`[name="${name}"]`), values, negated };
});

const valueOf = (source) => (source.type === "checkbox" ? String(source.checked) : source.value.trim());

function show() {
  for (const { field, source, values, negated } of dependents)
    field.hidden = source !== null && values.includes(valueOf(source)) === negated;
  for (const folded of document.querySelectorAll("details.accordion"))
    folded.hidden = [...folded.querySelectorAll(".field")].every((field) => field.hidden);
}

for (const source of new Set(dependents.map((one) => one.source))) source?.addEventListener("change", show);
show();
