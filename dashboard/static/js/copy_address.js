// The button [data-copy-address]: copies the page's address, and shows whether that succeeded.

/* Copies with the command of older browsers, which copies the selection in a field. */
function copyFromField(text) {
  const focused = document.activeElement;
  const field = document.createElement("textarea");
  field.className = "visually-hidden";
  field.readOnly = true; // prevents the keyboard of a phone
  field.value = text;
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  focused.focus({ preventScroll: true });
  return done;
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyFromField(text); // pages over plain HTTP from another host have no clipboard API
  }
}

document.addEventListener("click", async ({ target }) => {
  const button = target.closest("[data-copy-address]");
  if (!button) return;
  button.textContent = (await copy(location.href)) ? "Address copied" : "Not copied: take it from the address bar";
});
