// Reads a schedule file into a field, where it can be edited and is checked as if typed:
// input[type=file][data-into="<name of the field>"][data-max="<bytes>"]. With data-headed it goes behind what the field
// has, under a line with its name. Without this file the form still works: the server does the same with the upload.

import { tooLarge } from "./file_size.js";
import { mark } from "./wrong_fields.js";

function problem(file, most) {
  if (!file.size) return `${file.name} is empty.`;
  return file.size > most ? tooLarge("A schedule", file, most) : "";
}

function headed(text, file) {
  return text.startsWith("#") ? text : `# ${file.name.replace(/\.[^.]*$/, "").slice(0, 40)}\n${text}`;
}

/* Says what is wrong with the chosen file; returns whether it can be read. */
function check(input) {
  const [file] = input.files;
  if (!file) return false;
  const said = problem(file, Number(input.dataset.max));
  input.form.querySelector(`#error-${input.name}`).textContent = said;
  mark();
  return !said;
}

async function read(input) {
  if (!check(input)) return;
  const [file] = input.files;
  const area = input.form.elements[input.dataset.into];
  const text = await file.text();
  area.value = "headed" in input.dataset ? [area.value.trimEnd(), headed(text, file)].filter(Boolean).join("\n") : text;
  input.form.querySelector(`#help-${input.name}`).textContent = `${file.name} was read into the field.`;
  input.value = ""; // otherwise the file would replace edits of the field
  area.dispatchEvent(new Event("input", { bubbles: true }));
}

const inputs = document.querySelectorAll("input[type=file][data-into]");
for (const input of inputs) input.addEventListener("change", () => read(input));
document.addEventListener("htmx:afterSettle", () => inputs.forEach(check)); // an answer has replaced the message
