/* One event stream per browser: one visible tab holds it, for the topics of all visible tabs, and passes on the news.
 *
 * A browser opens six connections to one host. With a stream in each, six windows would leave no connection for their
 * requests, and a seventh would never load. A lock determines which tab holds the stream, and is released when the tab
 * closes. Without locks (pages over HTTP from another host) each tab holds its own stream.
 *
 *   const share = new Share({ moved, opened, news, lost, signedOut });
 *   share.want(["runs", "run:12"]);   // none: this tab does not take part
 */

import { Source } from "./stream_source.js";

const NAME = "trainyard-stream";

export class Share {
  constructor(on) {
    this.on = on;
    this.me = Math.random().toString(36);
    this.topics = [];
    this.others = new Map(); // tab -> its topics, in the tab that holds the stream
    this.lockRequest = null; // AbortController of the request to hold the stream
    this.letGo = null; // releases the stream to another tab; null if this tab does not hold it
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
    else if (!this.lockRequest) this.ask();
  }

  ask() {
    const lockRequest = new AbortController();
    this.lockRequest = lockRequest;
    if (!this.channel) return this.hold(() => {});
    const held = () => new Promise((letGo) => (this.lockRequest === lockRequest ? this.hold(letGo) : letGo()));
    navigator.locks.request(NAME, { signal: lockRequest.signal }, held).catch(() => {}); // aborted before it was granted
  }

  hold(letGo) {
    this.letGo = letGo;
    this.toAll({ what: "moved" });
    this.follow();
  }

  leave() {
    this.source.follow([]);
    this.lockRequest?.abort();
    this.letGo?.();
    this.lockRequest = this.letGo = null;
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

  /** The network was lost or is back, which the browser knows before a stream does. */
  offline() {
    this.source.lose();
  }

  online() {
    if (this.letGo && !this.source.open) this.source.schedule(0);
  }
}
