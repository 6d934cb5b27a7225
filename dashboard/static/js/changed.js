/* Whether an input says something else than the page that the server sent. */
export function changed(input) {
  if (input.type === "file") return false;
  if (input.type === "checkbox" || input.type === "radio") return input.checked !== input.defaultChecked;
  if (input.tagName === "SELECT") {
    const options = [...input.options];
    return options.some((own) => own.defaultSelected) ? options.some((own) => own.selected !== own.defaultSelected) : input.selectedIndex > 0;
  }
  return input.value !== input.defaultValue;
}
