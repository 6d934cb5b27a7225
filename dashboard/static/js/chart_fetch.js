/* Fetches the numbers of charts, and says under a drawn chart when that failed.
 *
 *   const chart = await fetchChart(url);   // the Chart object; each error is told in a sentence
 *   const chart = fetchChartNow(url);      // the same, and the page stands still meanwhile
 *   reason(error)                          // that sentence, without what a browser or a library says itself
 *   note(element, words, "scale")          // under the drawing, in place of the note before on the same; without
 *                                          // words, none
 */

import { get, Refused } from "./refetch.js";

/* An error told in `sentence`, a whole one. */
export const told = (Kind, sentence) => Object.assign(new Kind(sentence), { sentence });

export const reason = (error) => error.sentence ?? "Its numbers could not be drawn.";

/* A refused request (`status` 400 to 499, or no longer signed in) is not worth another attempt. */
export async function fetchChart(url) {
  const answer = await get(url, { headers: { Accept: "application/json" } }).catch(() => {
    throw told(Error, "The server could not be reached.");
  });
  if (answer.redirected) throw told(Refused, "You are signed out.");
  if (!answer.ok) throw refusal(answer.status);
  return answer.json().catch(() => {
    throw told(Error, "The answer of the server was cut off.");
  });
}

function refusal(status) {
  return Object.assign(told(status < 500 ? Refused : Error, `The server answered ${status}.`), { status });
}

export function fetchChartNow(url) {
  const asked = new XMLHttpRequest();
  asked.open("GET", url, false);
  asked.setRequestHeader("Accept", "application/json");
  try {
    asked.send();
  } catch {
    throw told(Error, "The server could not be reached.");
  }
  if (asked.status !== 200) throw refusal(asked.status);
  try {
    return JSON.parse(asked.responseText);
  } catch {
    throw told(Refused, "You are signed out."); // led to the page that asks for the password
  }
}

export function note(element, words, about = "numbers") {
  element.querySelector(`:scope > .chart-note[data-about=${about}]`)?.remove();
  if (!words) return;
  const said = document.createElement("p");
  said.className = "notice warning small chart-note";
  said.dataset.about = about;
  said.setAttribute("role", "status");
  said.textContent = words;
  element.querySelector(".chart-frame").after(said);
}
