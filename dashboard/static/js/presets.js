// The New run form's presets: marks the one that filled the form as current while the spec is unchanged.

import { changed } from "./changed.js";

const form = document.querySelector("#run-form");
const nav = document.querySelector("nav.presets");
const chip = nav?.querySelector("[aria-current]");
const note = nav?.querySelector("[data-changed]");

function mark() {
  // Only fields of the spec (their names have a section): name, tags and retries do not belong to a preset.
  const other = [...form.querySelectorAll('[name*="__"]')].some(changed);
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
