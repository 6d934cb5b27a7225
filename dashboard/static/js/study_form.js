// After each live preview: fields with a message are marked as invalid, so that sight and screen reader agree.

function mark() {
  for (const field of document.querySelectorAll("#study-form .field")) {
    const wrong = Boolean(field.querySelector(".error")?.textContent.trim());
    field.classList.toggle("has-error", wrong);
    for (const input of field.querySelectorAll("input, select, textarea")) {
      if (wrong) input.setAttribute("aria-invalid", "true");
      else input.removeAttribute("aria-invalid");
    }
  }
}

mark();
document.body.addEventListener("htmx:afterSettle", mark);
