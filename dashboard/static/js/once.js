/* What was sent is not sent a second time while its answer is on the way: two quick clicks make one run, not two.
 *
 * Another button of the same form still counts, and so does the same one where nothing came back in time.
 */

const AGAIN_MS = 15_000;
const sent = new Map(); // form -> [button, when]

document.addEventListener("submit", (event) => {
  const { target: form, submitter, defaultPrevented } = event;
  if (defaultPrevented || form.method !== "post") return;
  const [button, when] = sent.get(form) ?? [];
  if (when && button === submitter && performance.now() - when < AGAIN_MS) event.preventDefault();
  else sent.set(form, [submitter, performance.now()]);
});

addEventListener("pageshow", () => sent.clear()); // the reader came back to it
