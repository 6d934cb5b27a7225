// The button [data-copy-address]: puts the page's address where it can be pasted from, and says whether it did.

/* The command of older browsers, which copies what is selected in a field. */
function copyFromField(text) {
  const focused = document.activeElement;
  const field = document.createElement("textarea");
  field.className = "visually-hidden";
  field.readOnly = true; // no keyboard on a phone
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
    return copyFromField(text); // a page by plain HTTP from another host is given no clipboard
  }
}

document.addEventListener("click", async ({ target }) => {
  const button = target.closest("[data-copy-address]");
  if (!button) return;
  button.textContent = (await copy(location.href)) ? "Address copied" : "Not copied: take it from the address bar";
});
