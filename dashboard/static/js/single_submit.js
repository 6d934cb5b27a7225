/* Prevents a form from being sent again while its answer is awaited: two quick clicks make one run, not two.
 *
 * Another button of the same form still works, and so does the same one after a time without an answer.
 */

const AGAIN_MS = 15_000;
const sent = new Map(); // form -> [button, when]

document.addEventListener("submit", (event) => {
  const { target: form, submitter, defaultPrevented } = event;
  const method = submitter?.formMethod || form.method; // a dialog's "Keep it" sends nothing
  if (defaultPrevented || method !== "post") return;
  const [button, when] = sent.get(form) ?? [];
  if (when && button === submitter && performance.now() - when < AGAIN_MS) event.preventDefault();
  else sent.set(form, [submitter, performance.now()]);
});

addEventListener("pageshow", () => sent.clear()); // the user returned to the page
