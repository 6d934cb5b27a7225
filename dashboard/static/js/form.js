// The New run form: refuses an invalid upload before it is sent, and reads a schedule from its file.
// Without this file the form still works: the server makes the same checks.

import { mark } from "./wrong_fields.js";

const form = document.querySelector("#run-form");

function uploadProblem(file) {
  const most = Number(form.dataset.maxUpload);
  if (!file) return "";
  if (file.size === 0) return "This file is empty: there is nothing to train on.";
  if (file.size > most) return `A corpus has at most ${Math.round(most / 2 ** 20)} MiB; this file has ${Math.round(file.size / 2 ** 20)} MiB.`;
  return "";
}

const upload = form.querySelector('input[name="upload"]');
const program = form.querySelector('input[name="program_file"]');

function checkUpload() {
  form.querySelector("#error-upload").textContent = uploadProblem(upload.files[0]);
  mark();
}

/* Reads a schedule file into its field, where it can be edited and is checked as if typed. */
async function readProgram() {
  const [file] = program.files;
  if (!file) return;
  const area = form.querySelector('[name="parallel__program"]');
  const told = form.querySelector("#error-program_file");
  const most = Number(program.dataset.max);
  if (!file.size || file.size > most) {
    told.textContent = !file.size ? `${file.name} is empty.` : `A schedule has at most ${Math.round(most / 1024)} KiB; this file has ${Math.round(file.size / 1024)} KiB.`;
    mark();
    return;
  }
  area.value = await file.text();
  told.textContent = "";
  form.querySelector("#help-program_file").textContent = `${file.name} was read into the field.`;
  program.value = ""; // otherwise the file would replace edits of the field
  mark();
  area.dispatchEvent(new Event("input", { bubbles: true }));
}

program.addEventListener("change", readProgram);
upload.addEventListener("change", checkUpload);
form.addEventListener("submit", (event) => {
  if (!uploadProblem(upload.files[0])) return;
  event.preventDefault();
  checkUpload();
  upload.focus();
});
document.body.addEventListener("htmx:afterSettle", checkUpload);
