// Marks fields with a message as invalid, by colour and for screen readers, at first and after every part that htmx
// inserts. Moves the focus to the errors of a form that was refused. Lines that show a wrong place of a schedule, as
// `>1F0<`, are scrolled to it where it is beyond the edge. Without this file the messages are still shown.

function showPlace(said) {
  const lines = said.lastChild;
  const at = said.scrollWidth > said.clientWidth && lines instanceof Text ? lines.data.search(/>\S/) : -1;
  if (at < 0) return;
  const place = document.createRange();
  place.setStart(lines, at);
  place.setEnd(lines, at + 1);
  const left = place.getBoundingClientRect().left - said.getBoundingClientRect().left + said.scrollLeft;
  if (left > said.clientWidth / 2) said.scrollLeft = left - said.clientWidth / 2;
}

export function mark() {
  for (const field of document.querySelectorAll(".field")) {
    const wrong = Boolean(field.querySelector(".error")?.textContent.trim());
    field.classList.toggle("has-error", wrong);
    for (const input of field.querySelectorAll("input, select, textarea")) {
      if (wrong) input.setAttribute("aria-invalid", "true");
      else input.removeAttribute("aria-invalid");
    }
  }
  for (const said of document.querySelectorAll(".field .error:has(> span)")) showPlace(said);
}

mark();
document.addEventListener("htmx:afterSettle", mark);
document.querySelector("#form-errors")?.focus();
