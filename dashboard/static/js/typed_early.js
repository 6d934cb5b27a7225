// Asks anew for the parts of a page that depend on a form in which something was typed before htmx was listening, as on
// a slow connection, or which was filled again: by the browser, as after a reload, or from a draft (draft.js).
// Without this file those parts are about the values as sent until the next change.

import { changed } from "./changed.js";

/* What its requests wait for: `change`, or `input` alone. One of them, as both would make two requests. */
const heard = (form) => (/\bchange\b/.test(form.getAttribute("hx-trigger")) ? "change" : "input");

addEventListener("load", () => {
  for (const form of document.querySelectorAll("form[hx-trigger]"))
    if ([...form.querySelectorAll("input[name], select[name], textarea[name]")].some(changed))
      form.dispatchEvent(new Event(heard(form), { bubbles: true }));
});
