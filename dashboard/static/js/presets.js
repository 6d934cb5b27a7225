// The New run form's presets: marks the one that filled the form as current while the spec is unchanged.

const form = document.querySelector("#run-form");
const nav = document.querySelector("nav.presets");
const chip = nav?.querySelector("[aria-current]");
const note = nav?.querySelector("[data-changed]");

/* Only fields of the spec (their names have a section): name, tags and retries do not belong to a preset. */
function changed() {
  return [...form.querySelectorAll('[name*="__"]')].some((input) => {
    if (input.type === "file") return false;
    if (input.type === "checkbox" || input.type === "radio") return input.checked !== input.defaultChecked;
    if (input.tagName === "SELECT") {
      const options = [...input.options];
      return options.some((own) => own.defaultSelected) ? options.some((own) => own.selected !== own.defaultSelected) : input.selectedIndex > 0;
    }
    return input.value !== input.defaultValue;
  });
}

function mark() {
  const other = changed();
  chip.classList.toggle("on", !other);
  if (other) chip.removeAttribute("aria-current");
  else chip.setAttribute("aria-current", "true");
  note.hidden = !other;
}

if (chip && note) {
  for (const event of ["input", "change"]) form.addEventListener(event, mark);
  document.addEventListener("htmx:afterSettle", mark); // after a file was read into the form
  mark(); // a draft may have been restored already
}
