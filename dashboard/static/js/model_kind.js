// Shows the fields of the chosen kind of model. Without this file all stand there; the server reads those of the kind.

const kind = document.querySelector('[name="model__kind"]');

function show() {
  for (const input of document.querySelectorAll("[data-kinds]")) {
    input.closest(".field").hidden = !input.dataset.kinds.split(" ").includes(kind.value);
  }
}

if (kind) {
  kind.addEventListener("change", show);
  show();
}
