// The New run form: refuses an invalid upload before it is sent.
// Without this file the form still works: the server makes the same check.

import { tooLarge } from "./file_size.js";
import { mark } from "./wrong_fields.js";

const form = document.querySelector("#run-form");

function uploadProblem(file) {
  const most = Number(form.dataset.maxUpload);
  if (!file) return "";
  if (file.size === 0) return "This file is empty: there is nothing to train on.";
  if (file.size > most) return tooLarge("A corpus", file, most);
  return "";
}

const upload = form.querySelector('input[name="upload"]');

function checkUpload() {
  form.querySelector("#error-upload").textContent = uploadProblem(upload.files[0]);
  mark();
}

upload.addEventListener("change", checkUpload);
form.addEventListener("submit", (event) => {
  if (!uploadProblem(upload.files[0])) return;
  event.preventDefault();
  checkUpload();
  upload.focus();
});
document.body.addEventListener("htmx:afterSettle", checkUpload);
