/* Keeps ages counting while a page is open: <time datetime data-age="span|short|ago">, worded as in dashboard/ages.py.
 * Uses the server's clock: data-now is its time when the page was rendered. How far this computer's clock is ahead of it
 * is kept, because a page from the browser's cache was rendered at another time than now.
 */

import { fromCache } from "./from_cache.js";

const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
const KEY = "trainyard-clock-ahead";
const ahead = clockAhead();

function clockAhead() {
  const now = Date.now() - 1000 * Number(document.documentElement.dataset.now);
  try {
    if (!fromCache) sessionStorage.setItem(KEY, now);
    return Number(sessionStorage.getItem(KEY) ?? now);
  } catch {
    return now; // storage may be disabled
  }
}

function span(seconds) {
  const [size, unit] = UNITS.find(([size]) => seconds >= size) ?? UNITS.at(-1);
  return `${Math.max(0, Math.floor(seconds / size))} ${unit}`;
}

const WORDS = {
  span,
  short: (seconds) => (seconds >= 1 ? span(seconds) : "now"),
  ago: (seconds) => (seconds >= 1 ? `${span(seconds)} ago` : "just now"),
};

function count() {
  for (const element of document.querySelectorAll("time[data-age]")) {
    const seconds = (Date.now() - ahead - Date.parse(element.dateTime)) / 1000;
    const text = WORDS[element.dataset.age](seconds);
    if (element.textContent !== text) element.textContent = text;
  }
}

setInterval(count, 1000);
