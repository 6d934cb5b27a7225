// The theme (light, dark or system): kept in this browser, applied before the first paint (this file loads blocking).
// Charts listen for the event `themechange` on the document.
(() => {
  const KEY = "trainyard-theme";
  const NAMES = { "": "as the system", light: "light", dark: "dark" };
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let printing = false;

  function stored() {
    try {
      return localStorage.getItem(KEY) || "";
    } catch {
      return ""; // storage may be disabled; the page then follows the system
    }
  }

  function apply(theme) {
    if (theme in NAMES && theme) root.dataset.theme = theme;
    else delete root.dataset.theme;
    for (const name of document.querySelectorAll("[data-theme-name]")) name.textContent = NAMES[theme] ?? NAMES[""];
  }

  function change(theme) {
    if (printing) return; // a browser prints as if the system were light
    apply(theme);
    document.dispatchEvent(new CustomEvent("themechange"));
  }

  /* Paper is white: charts, whose colours are computed, are drawn again for it. */
  function print() {
    if ((root.dataset.theme ?? (dark.matches ? "dark" : "light")) === "light") return;
    root.dataset.theme = "light";
    document.dispatchEvent(new CustomEvent("themechange"));
    printing = true;
  }

  function printed() {
    if (!printing) return;
    printing = false;
    change(stored());
  }

  function next(theme) {
    const order = Object.keys(NAMES);
    return order[(order.indexOf(theme) + 1) % order.length];
  }

  apply(stored());
  document.addEventListener("DOMContentLoaded", () => apply(stored())); // the theme's names are on the page now
  dark.addEventListener("change", () => change(stored()));
  addEventListener("beforeprint", print);
  addEventListener("afterprint", printed);
  document.addEventListener("click", (event) => {
    if (!event.target.closest("[data-theme-toggle]")) return;
    const theme = next(stored());
    try {
      localStorage.setItem(KEY, theme);
    } catch {
      // then it applies to this page only
    }
    change(theme);
  });
  // Menus close on Escape, and on a click and when the focus goes elsewhere: they lie over what comes next.
  for (const what of ["click", "focusin"]) {
    document.addEventListener(what, (event) => {
      for (const menu of document.querySelectorAll("details.menu[open]")) if (!menu.contains(event.target)) menu.open = false;
    });
  }
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    for (const menu of document.querySelectorAll("details.menu[open]")) {
      menu.open = false;
      menu.querySelector("summary").focus();
    }
  });
})();
