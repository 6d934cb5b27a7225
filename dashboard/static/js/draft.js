/* Keeps the values of a long form when its submit is refused (signed out, too large, the disk is full) or breaks:
 * form[data-draft] with an id; where its page answers a submit itself and has no address to open, the value of
 * data-draft is the address that opens the form.
 *
 * Without this file, a user returns to an empty form after a submit that led to the sign-in or to an error page. The
 * values are kept only in this tab, until a submit has succeeded; files cannot be kept. A page that answers a submit
 * which was not taken has [data-not-taken], or [data-not-taken="perhaps"] where it may have been.
 */

const KEY = "trainyard-draft";
/* The address without its fragment: a link that only adds one moves within the page, and opens nothing. */
const [here] = location.href.split("#");

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
  const page = new URL(form.dataset.draft || here, here).href;
  try {
    sessionStorage.setItem(KEY, JSON.stringify({ id: form.id, action, page, from: here, values }));
  } catch {
    sessionStorage.removeItem(KEY); // too large to store, as a pasted file may be; older values must not return
  }
}

function notice(...words) {
  const note = document.createElement("p");
  note.className = "notice warning";
  note.setAttribute("role", "status");
  note.append(...words);
  return note;
}

const link = (href, words) => Object.assign(document.createElement("a"), { href, textContent: words });

/* The list that shows whether a form was taken. */
function listOf(action) {
  const [, section] = action.split("/");
  const name = { studies: "Studies", traces: "Traces" }[section] ?? "Runs";
  return link(`/${name.toLowerCase()}/`, name);
}

/* What became of the draft, and what to do before it is sent once more. */
const fate = ({ perhaps, action }) =>
  perhaps ? ["This may not have been taken when you sent it; look at ", listOf(action), " first."] : ["This was not taken when you sent it."];

function fill(form, draft) {
  for (const input of form.querySelectorAll("input[name], select[name], textarea[name]")) {
    if (["file", "hidden", "submit"].includes(input.type)) continue;
    const own = draft.values.filter(([name]) => name === input.name).map(([, value]) => value);
    if (["checkbox", "radio"].includes(input.type)) input.checked = own.includes(input.value);
    else if (own.length) [input.value] = own;
  }
  form.before(notice(...fate(draft), " What you had typed is back; choose files again."));
}

/* Keeps the draft until its form is opened again, and says so: not again on later pages, which are about something else. */
function hold(draft, page) {
  const signIn = document.querySelector("form[data-sign-in]");
  const signedOut = signIn !== null && (!draft.refused || draft.signedOut);
  const kept = { perhaps: page?.dataset.notTaken === "perhaps", ...draft, signedOut, refused: true };
  sessionStorage.setItem(KEY, JSON.stringify(kept));
  if (signedOut) signIn.prepend(notice("You were signed out, so this was not taken. What you typed is kept in this tab: sign in, and it is back."));
  page?.closest(".empty").append(notice(...fate(kept), " What you typed is kept in this tab: ", link(draft.page, "open the form again"), "."));
}

const [arrival] = performance.getEntriesByType("navigation");

/* Whether the form is opened again although no page has answered it: the yard could not be reached. */
const unanswered = (draft) => here === draft.from && ["reload", "back_forward"].includes(arrival?.type);

/* Whether this page is an error, other than the form itself with what is wrong in it. Not every browser tells. */
const failed = (draft) => arrival?.responseStatus >= 400 && !document.getElementById(draft.id);

/* Whether the address that opens the form answers with an error, as of a run that was deleted. */
const gone = (draft) => draft.refused && here === draft.page && failed(draft);

function arrive(draft) {
  const page = document.querySelector("[data-not-taken]");
  const perhaps = unanswered(draft);
  if (!page && gone(draft)) sessionStorage.removeItem(KEY);
  else if (page || document.querySelector("form[data-sign-in]") || failed(draft)) hold(draft, page);
  else if (perhaps || (here === draft.page && draft.refused)) {
    sessionStorage.removeItem(KEY);
    const form = document.getElementById(draft.id);
    if (form) fill(form, { perhaps, ...draft });
  } else if (!draft.refused) {
    sessionStorage.removeItem(KEY);
  } else if (location.pathname === draft.action && !draft.returned) {
    // Several forms are sent to one address: returns to the one that was filled in. Once: it may lead back here.
    sessionStorage.setItem(KEY, JSON.stringify({ ...draft, returned: true }));
    location.replace(draft.page);
  }
}

const draft = read();
if (draft) arrive(draft);

document.addEventListener("submit", ({ target, defaultPrevented }) => {
  if (!defaultPrevented && target.matches("form[data-draft][id]")) keep(target);
});
