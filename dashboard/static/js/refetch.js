/* When a part of a page is fetched again: one fetch at a time; news during a fetch cause one more. While runs only
 * progress, fetches are so rare that their answers take at most 1/40 of a core: on a laptop the same processor executes
 * the runs. A failed fetch is repeated, ever more seldom, as the stream may still be open, so that no news may follow; but
 * not a refused one (400 to 499), which would be refused again.
 *
 *   const part = new Paced();
 *   part.soon(fetchIt, 250, isUrgent(what));   // in 250 ms; later after an answer that cost much, unless it is urgent
 *   const answer = await get(address, { headers });
 *   check(answer);                             // throws unless it is a success
 *   part.paid(answer);                         // called with each success
 */

const PRICE = 40;
const LONGEST_MS = 15000;
const RETRY_MS = 3000;
const BUSY_MS = 100;
const LIMIT_MS = 30000;
const URGENT = ["*", "state", "summary"]; // more has changed than the progress of a run

/* As fetch; an answer that hangs, whole or in part, is an error after LIMIT_MS. */
export function get(address, { signal, ...options } = {}) {
  const limit = AbortSignal.timeout(LIMIT_MS);
  return fetch(address, { ...options, signal: signal ? AbortSignal.any([signal, limit]) : limit });
}

export const isUrgent = (what) => [...what].some((one) => URGENT.includes(one));

export class Refused extends Error {}

export function check(answer) {
  if (answer.ok) return;
  const said = `${answer.url}: ${answer.status}`;
  throw answer.status >= 400 && answer.status < 500 ? new Refused(said) : new Error(said);
}

export class Paced {
  constructor() {
    this.timer = null;
    this.due = 0; // when the timer ends
    this.free = 0; // when the cost of the last answer is spread over enough time
    this.busy = false;
    this.retry = RETRY_MS; // the wait after the next failure
  }

  soon(work, gap, urgent = false) {
    const now = performance.now();
    const due = urgent ? now + gap : Math.max(now + gap, this.free);
    if (this.timer !== null && this.due <= due) return;
    clearTimeout(this.timer);
    this.due = due;
    this.timer = setTimeout(() => this.run(work, gap, urgent), due - now);
  }

  paid(answer) {
    this.free = performance.now() + Math.min(LONGEST_MS, PRICE * Number(answer.headers.get("X-Cost-Ms")));
  }

  async run(work, gap, urgent) {
    this.timer = null;
    if (this.busy) {
      this.soon(work, Math.max(gap, BUSY_MS), urgent);
      return;
    }
    this.busy = true;
    let failed = false;
    try {
      await work();
      this.retry = RETRY_MS;
    } catch (error) {
      if (error.name !== "AbortError") console.warn(error); // the browser aborts what a page that is left still reads
      failed = !(error instanceof Refused);
    }
    this.busy = false;
    if (!failed) return;
    this.soon(work, this.retry, true);
    this.retry = Math.min(LONGEST_MS, 2 * this.retry);
  }
}
