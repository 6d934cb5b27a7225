/* One event stream a browser: of the tabs that somebody sees one holds it, for the topics of all, and tells the others.
 *
 * A browser opens six connections to one host. With a stream each, six windows side by side would leave none for what
 * they fetch, and the seventh would never load. A lock says which tab holds the stream, and ends with that tab; where
 * browsers have no locks (pages by HTTP from another host) each tab holds a stream of its own.
 *
 *   const share = new Share({ moved, opened, news, lost, signedOut });
 *   share.want(["runs", "run:12"]);   // none: this tab takes no part
 */

import { Source } from "./stream_source.js";

const NAME = "trainyard-stream";

export class Share {
  constructor(on) {
    this.on = on;
    this.me = Math.random().toString(36);
    this.topics = [];
    this.others = new Map(); // tab -> its topics, as the tab that holds the stream is told
    this.wish = null; // to hold the stream
    this.letGo = null; // gives it to another tab; null where another holds it
    const all = (what) => (more) => this.toAll({ what, more });
    const told = { opened: all("opened"), news: all("news"), lost: all("lost"), signedOut: all("signedOut") };
    this.source = new Source(told);
    this.channel = navigator.locks ? new BroadcastChannel(NAME) : null;
    this.channel?.addEventListener("message", ({ data }) => this.hear(data));
  }

  want(topics) {
    this.topics = topics;
    this.channel?.postMessage({ what: "wants", more: { from: this.me, topics } });
    if (!topics.length) this.leave();
    else if (this.letGo) this.follow();
    else if (!this.wish) this.ask();
  }

  ask() {
    const wish = new AbortController();
    this.wish = wish;
    if (!this.channel) return this.hold(() => {});
    const held = () => new Promise((letGo) => (this.wish === wish ? this.hold(letGo) : letGo()));
    navigator.locks.request(NAME, { signal: wish.signal }, held).catch(() => {}); // given up before it came
  }

  hold(letGo) {
    this.letGo = letGo;
    this.toAll({ what: "moved" });
    this.follow();
  }

  leave() {
    this.source.follow([]);
    this.wish?.abort();
    this.letGo?.();
    this.wish = this.letGo = null;
    this.others.clear();
  }

  follow() {
    this.source.follow([...this.topics, ...[...this.others.values()].flat()]);
  }

  toAll(message) {
    this.hear(message);
    this.channel?.postMessage(message);
  }

  hear({ what, more }) {
    if (what === "wants") this.wanted(more);
    else if (this.topics.length) this.on[what](more);
    if (what === "moved" && !this.letGo && this.topics.length) this.want(this.topics);
  }

  wanted({ from, topics }) {
    if (!this.letGo) return;
    if (topics.length) this.others.set(from, topics);
    else this.others.delete(from);
    this.follow();
  }

  /** The network is gone, or back: the browser knows it before a stream does. */
  offline() {
    this.source.lose();
  }

  online() {
    if (this.letGo && !this.source.open) this.source.schedule(0);
  }
}
