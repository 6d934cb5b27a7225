/* The event stream: reopens after a loss or a change of topics, and resumes after the last message.
 *
 * A connection that is cut without notice reports no error. The server sends something at least every KEEP_ALIVE_S
 * (dashboard/live/views.py), so a stream that is silent for longer is taken for lost. An open stream is no use either
 * while the server itself gets no news, which its messages `hello` and `beat` tell.
 *
 *   const source = new Source({ opened, news, lost, signedOut });
 *   source.follow(["runs", "run:12"]);   // none: the stream is closed
 */

import { get } from "./refetch.js";

const FIRST_DELAY_MS = 500;
const LONGEST_DELAY_MS = 15000;
const SILENT_MS = 30000; // twice the server's KEEP_ALIVE_S
const SETTLE_MS = 20; // waits this long, as tabs and parts of a page add their topics one after another

export class Source {
  constructor(on) {
    this.on = on;
    this.topics = [];
    this.open = null; // the topics of the stream after its hello
    this.live = null; // whether the server gets news; null before the hello
    this.lastId = "";
    this.delay = FIRST_DELAY_MS;
    this.timer = null;
    this.watchdog = null;
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
      this.tell(); // these topics are streamed already
    }
  }

  schedule(wait) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.connect(), wait);
  }

  close() {
    clearTimeout(this.watchdog);
    this.events?.close();
    this.events = this.open = this.live = null;
  }

  /* Called at every sign of life of the stream. */
  watch() {
    clearTimeout(this.watchdog);
    this.watchdog = setTimeout(() => this.lose(), SILENT_MS);
  }

  heard({ live }) {
    if (live === this.live) return;
    this.live = live;
    this.tell();
  }

  tell() {
    if (this.live) this.on.opened(this.open);
    else this.on.lost();
  }

  connect() {
    this.close();
    const topics = this.topics;
    const query = new URLSearchParams({ topics: topics.join(",") });
    if (this.lastId) query.set("last", this.lastId);
    const mine = new EventSource(`/live/stream?${query}`);
    this.events = mine;
    this.watch();
    const hear = (name, then) =>
      mine.addEventListener(name, (event) => {
        if (mine !== this.events) return;
        this.watch();
        then(event);
      });
    hear("hello", ({ lastEventId, data }) => {
      this.lastId = lastEventId;
      this.delay = FIRST_DELAY_MS;
      this.open = topics;
      this.heard(JSON.parse(data));
    });
    hear("beat", ({ data }) => this.heard(JSON.parse(data)));
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
    const answer = await get("/live/stream").catch(() => null);
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
