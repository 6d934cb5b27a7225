/* The text in place of a chart that has nothing to draw, or could not be drawn. */

export function emptyNote(text) {
  const note = document.createElement("p");
  note.className = "empty small";
  note.textContent = text ?? "Nothing to draw: there are no numbers so far.";
  return note;
}

export function failed(element, error) {
  const note = document.createElement("p");
  note.className = "empty small failed";
  note.textContent = `This chart could not be shown: ${error.message} Reload the page to try again.`;
  element.querySelector(".chart-box").replaceChildren(note);
}
