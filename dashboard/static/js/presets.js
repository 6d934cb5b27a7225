// The New run form's presets: the one that filled the form is marked as current while the spec is still as it made it.

const form = document.querySelector("#run-form");
const nav = document.querySelector("nav.presets");
const chip = nav?.querySelector("[aria-current]");
const note = nav?.querySelector("[data-changed]");

/* Of the spec alone (its names have a section): a name, tags or retries are no preset's. */
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
  document.addEventListener("htmx:afterSettle", mark); // what a file was read into
  mark(); // a draft may be back already
}
