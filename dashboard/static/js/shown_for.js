// Shows a field only for certain values of another: data-shown-for="<name of the other field> <its values>", or for all
// others: data-shown-for="<name> not <values>".
// Offers an option only for certain values of another field: data-only-for="<its name> <its values>"; where the chosen
// one is not offered any more, the first that is takes its place.
// Without this file all are shown; the server ignores those that do not apply.

const dependents = [...document.querySelectorAll("[data-shown-for]")].map((input) => {
  const [name, ...words] = input.dataset.shownFor.split(" ");
  const negated = words[0] === "not";
  const values = negated ? words.slice(1) : words;
  return { field: input.closest(".field"), source: document.querySelector(`[name="${name}"]`), values, negated };
});

const valueOf = (source) => (source.type === "checkbox" ? String(source.checked) : source.value.trim());

const options = [...document.querySelectorAll("option[data-only-for]")].map((option) => {
  const [name, ...values] = option.dataset.onlyFor.split(" ");
  return { option, source: document.querySelector(`[name="${name}"]`), values };
});

function offer() {
  for (const { option, source, values } of options)
    option.hidden = option.disabled = source !== null && !values.includes(valueOf(source));
  for (const select of new Set(options.map(({ option }) => option.closest("select")))) {
    const first = [...select.options].find((option) => !option.disabled);
    if (first && (select.selectedIndex < 0 || select.selectedOptions[0].disabled)) select.value = first.value;
  }
}

function show() {
  offer();
  for (const { field, source, values, negated } of dependents)
    field.hidden = source !== null && values.includes(valueOf(source)) === negated;
  for (const folded of document.querySelectorAll("details.accordion"))
    folded.hidden = [...folded.querySelectorAll(".field")].every((field) => field.hidden);
}

for (const source of new Set([...dependents, ...options].map((one) => one.source))) source?.addEventListener("change", show);
show();
