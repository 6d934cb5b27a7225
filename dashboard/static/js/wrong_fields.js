// Fields with a message are marked as invalid, so that sight and screen reader agree: at first, and after every part
// that htmx puts in. A form that was refused begins at what is said of it. Without this file the messages still stand there.

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
