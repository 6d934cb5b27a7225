/* A page that is open longer than its session: it stays with everything that was typed, and shows what to do.
 *
 * Parts that htmx requests while nobody is signed in are answered with 401 (accounts/middleware.py). After signing in
 * again in another tab the user can continue here: requests use the browser's current CSRF token, not the page's.
 */

const note = document.createElement("p");
note.className = "notice warning connection";
note.setAttribute("role", "status");
let barred = false;

const token = () => /(?:^|; )csrftoken=([^;]+)/.exec(document.cookie)?.[1];

function say(words) {
  const link = document.createElement("a");
  link.href = "/accounts/login/?next=/";
  link.target = "_blank";
  link.textContent = "Sign in in a new tab";
  note.replaceChildren(`${words} Nothing that you typed is lost. `, link, ", then go on here.");
  document.body.append(note);
}

document.addEventListener(
  "submit",
  ({ target }) => {
    const field = target.querySelector("input[name=csrfmiddlewaretoken]");
    if (field && token()) field.value = token();
  },
  true,
);

document.addEventListener("htmx:configRequest", ({ detail }) => {
  if (!token()) return;
  detail.headers["x-csrftoken"] = token();
  if (detail.formData.has("csrfmiddlewaretoken")) detail.formData.set("csrfmiddlewaretoken", token()); // it counts first
});

/* Elements that poll would do so for ever. */
document.addEventListener("htmx:beforeRequest", (event) => {
  if (barred && asksByTheClock(event.detail.elt)) event.preventDefault();
});

document.addEventListener("htmx:responseError", ({ detail: { elt, xhr } }) => {
  if (xhr.status === 404 && asksByTheClock(elt)) location.reload(); // deleted: the page says so
  if (![401, 403].includes(xhr.status)) return;
  barred = true;
  say(xhr.status === 401 ? "You are signed out, so nothing is checked any more." : "This page is too old to be checked.");
});

document.addEventListener("htmx:afterRequest", ({ detail: { successful } }) => {
  if (!successful) return;
  barred = false;
  note.remove();
});

export function asksByTheClock(element) {
  return (element.getAttribute("hx-trigger") ?? "").startsWith("every");
}
