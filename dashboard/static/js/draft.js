/* Keeps the values of a long form when its submit is refused (signed out, too large): form[data-draft] with an id.
 *
 * Without this file, a user returns to an empty form after a submit that led to the sign-in or to an error page. The
 * values are kept only in this tab, until a submit has led anywhere else; files cannot be kept.
 */

const KEY = "trainyard-draft";

function read() {
  try {
    return JSON.parse(sessionStorage.getItem(KEY));
  } catch {
    return null;
  }
}

function keep(form) {
  const values = [...new FormData(form)].filter(([name, value]) => typeof value === "string" && name !== "csrfmiddlewaretoken");
  const action = new URL(form.action).pathname;
  try {
    sessionStorage.setItem(KEY, JSON.stringify({ id: form.id, action, page: location.href, values }));
  } catch {
    sessionStorage.removeItem(KEY); // too large to store, as a pasted file may be; older values must not return
  }
}

function notice(words) {
  const note = document.createElement("p");
  note.className = "notice warning";
  note.setAttribute("role", "status");
  note.textContent = words;
  return note;
}

function fill(form, values) {
  for (const input of form.querySelectorAll("input[name], select[name], textarea[name]")) {
    if (["file", "hidden", "submit"].includes(input.type)) continue;
    const own = values.filter(([name]) => name === input.name).map(([, value]) => value);
    if (["checkbox", "radio"].includes(input.type)) input.checked = own.includes(input.value);
    else if (own.length) [input.value] = own;
  }
  form.before(notice("This was not taken when you sent it. What you had typed is back; choose files again."));
  // Parts that depend on the values are requested again, after htmx, whose script runs after this one, is listening.
  window.addEventListener("load", () => form.dispatchEvent(new Event("change", { bubbles: true })));
}

const draft = read();
const signIn = document.querySelector("form[data-sign-in]");
if (draft && (signIn || document.querySelector("[data-not-taken]"))) {
  signIn?.prepend(notice("You were signed out, so this was not taken. What you typed is kept in this tab: sign in, and it is back."));
  sessionStorage.setItem(KEY, JSON.stringify({ ...draft, signedOut: true }));
} else if (draft?.signedOut && location.href === draft.page) {
  sessionStorage.removeItem(KEY);
  const form = document.getElementById(draft.id);
  if (form) fill(form, draft.values);
} else if (draft?.signedOut && location.pathname === draft.action) {
  location.replace(draft.page); // several forms are sent to one address: returns to the one that was filled in
} else {
  sessionStorage.removeItem(KEY);
}

document.addEventListener("submit", ({ target, defaultPrevented }) => {
  if (!defaultPrevented && target.matches("form[data-draft][id]")) keep(target);
});
