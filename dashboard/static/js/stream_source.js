/* The event stream: reopens after a loss or a change of topics, and resumes after the last message.
 *
 *   const source = new Source({ opened, news, lost, signedOut });
 *   source.follow(["runs", "run:12"]);   // none: the stream is closed
 */

const FIRST_DELAY_MS = 500;
const LONGEST_DELAY_MS = 15000;
const SETTLE_MS = 20; // waits this long, as tabs and parts of a page add their topics one after another

export class Source {
  constructor(on) {
    this.on = on;
    this.topics = [];
    this.open = null; // the topics of the stream after its hello
    this.lastId = "";
    this.delay = FIRST_DELAY_MS;
    this.timer = null;
    this.events = null;
  }

  follow(topics) {
    const wanted = [...new Set(topics)].sort();
    if (!wanted.length) {
      clearTimeout(this.timer);
      this.topics = [];
      this.close();
    } else if (wanted.join() !== this.topics.join()) {
      this.topics = wanted;
      this.schedule(SETTLE_MS);
    } else if (this.open) {
      this.on.opened(this.open); // these topics are streamed already
    }
  }

  schedule(wait) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.connect(), wait);
  }

  close() {
    this.events?.close();
    this.events = this.open = null;
  }

  connect() {
    this.close();
    const topics = this.topics;
    const query = new URLSearchParams({ topics: topics.join(",") });
    if (this.lastId) query.set("last", this.lastId);
    const mine = new EventSource(`/live/stream?${query}`);
    this.events = mine;
    const hear = (name, then) => mine.addEventListener(name, (event) => mine === this.events && then(event));
    hear("hello", ({ lastEventId }) => {
      this.lastId = lastEventId;
      this.delay = FIRST_DELAY_MS;
      this.open = topics;
      this.on.opened(topics);
    });
    hear("message", ({ lastEventId, data }) => {
      if (lastEventId) this.lastId = lastEventId;
      this.on.news(JSON.parse(data));
    });
    hear("bye", ({ data }) => (JSON.parse(data).why === "signed-out" ? this.on.signedOut() : this.lose()));
    hear("error", () => (mine.readyState === EventSource.CLOSED ? this.refused(mine) : this.lose()));
  }

  /* The answer was not a stream. The browser does not reveal its status, so a fetch finds it out: after a sign-out
   * there is no use in retrying. Without topics the server opens no stream. */
  async refused(mine) {
    const answer = await fetch("/live/stream").catch(() => null);
    if (mine !== this.events) return;
    if (answer?.status === 401) this.on.signedOut();
    else this.lose();
  }

  lose() {
    if (!this.topics.length) return;
    this.close();
    this.on.lost();
    // Random delay, so that not all browsers connect to a restarted server at once.
    this.schedule(this.delay * (0.5 + Math.random()));
    this.delay = Math.min(this.delay * 2, LONGEST_DELAY_MS);
  }
}
