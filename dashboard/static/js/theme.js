// The theme (light, dark or system): kept in this browser, applied before the first paint (this file loads blocking).
// Charts listen for the event `themechange` on the document.
(() => {
  const KEY = "trainyard-theme";
  const NAMES = { "": "as the system", light: "light", dark: "dark" };
  const root = document.documentElement;

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
    apply(theme);
    document.dispatchEvent(new CustomEvent("themechange"));
  }

  function next(theme) {
    const order = Object.keys(NAMES);
    return order[(order.indexOf(theme) + 1) % order.length];
  }

  apply(stored());
  document.addEventListener("DOMContentLoaded", () => apply(stored())); // the theme's names are on the page now
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => change(stored()));
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
  // Menus close on Escape and on a click elsewhere.
  document.addEventListener("click", (event) => {
    for (const menu of document.querySelectorAll("details.menu[open]")) if (!menu.contains(event.target)) menu.open = false;
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    for (const menu of document.querySelectorAll("details.menu[open]")) {
      menu.open = false;
      menu.querySelector("summary").focus();
    }
  });
})();
