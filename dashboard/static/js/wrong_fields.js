// Marks fields with a message as invalid, by colour and for screen readers, at first and after every part that htmx
// inserts. Moves the focus to the errors of a form that was refused. Without this file the messages are still shown.

export function mark() {
  for (const field of document.querySelectorAll(".field")) {
    const wrong = Boolean(field.querySelector(".error")?.textContent.trim());
    field.classList.toggle("has-error", wrong);
    for (const input of field.querySelectorAll("input, select, textarea")) {
      if (wrong) input.setAttribute("aria-invalid", "true");
      else input.removeAttribute("aria-invalid");
    }
  }
}

mark();
document.addEventListener("htmx:afterSettle", mark);
document.querySelector("#form-errors")?.focus();
