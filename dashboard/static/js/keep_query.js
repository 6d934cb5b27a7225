/* Links and forms that keep what scripts wrote into the page's address after it was rendered (a zoom, how curves
 * are drawn): <a data-keeps="from to">, <form data-keeps="axis"> name those parameters. */

/* [name, value or null] of each parameter that the element keeps. */
function kept(element) {
  const now = new URLSearchParams(location.search);
  return element.dataset.keeps.split(" ").map((name) => [name, now.get(name)]);
}

function keepInLink({ target }) {
  const link = target.closest?.("a[data-keeps]");
  if (!link) return;
  const url = new URL(link.href);
  for (const [name, value] of kept(link)) {
    if (value === null) url.searchParams.delete(name);
    else url.searchParams.set(name, value);
  }
  link.href = url.href;
}

function keepInForm({ target: form }) {
  if (!form.dataset.keeps) return;
  for (const [name, value] of kept(form)) {
    form.querySelector(`input[type="hidden"][name="${CSS.escape(name)}"]`)?.remove();
    if (value === null) continue;
    const input = Object.assign(document.createElement("input"), { type: "hidden", name, value });
    form.append(input);
  }
}

for (const kind of ["click", "auxclick"]) document.addEventListener(kind, keepInLink, true); // auxclick: a new tab
document.addEventListener("submit", keepInForm, true);
