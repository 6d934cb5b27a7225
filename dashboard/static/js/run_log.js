/* The log of a rank on a run's page. It grows at its end, and on request at its beginning. All of its text is laid out
 * again for each new line, so only about the last KEPT_BYTES stay on the page; what was dropped can be loaded again, and
 * then up to READ_BYTES stay.
 *
 *   const log = new Log(element, getJson, soon);
 *   await log.fetchNew();   // only one at a time
 *
 * getJson(query): the server's answer, { text, start, end, total, attempt }; soon(): causes a call of fetchNew.
 */

const KEPT_BYTES = 512 * 1024;
const READ_BYTES = 8 * KEPT_BYTES; // for a reader who is not at the end or has asked for earlier lines
const EARLIER_BYTES = 64 * 1024;
const AT_END_PX = 32;

export class Log {
  constructor(element, getJson, soon) {
    Object.assign(this, { element, getJson, soon, most: KEPT_BYTES });
    this.earlier = document.getElementById("log-earlier");
    this.earlier.addEventListener("click", () => this.fetchEarlier());
    const { rank, start, end, total, attempt } = element.dataset;
    Object.assign(this, { rank, ...numbers({ start, end, total, attempt }) });
    element.normalize(); // one text node
    this.pieces = element.firstChild ? [{ node: element.firstChild, bytes: this.end - this.start }] : [];
    this.show();
    element.scrollTop = element.scrollHeight;
  }

  fetch(more) {
    return this.getJson(`rank=${this.rank}&${more}`);
  }

  async fetchNew() {
    for (;;) {
      const part = await this.fetch(`start=${this.end}`);
      if (this.begunAgain(part)) continue;
      const atEnd = this.element.scrollHeight - this.element.scrollTop - this.element.clientHeight < AT_END_PX;
      if (atEnd && part.total - part.end > this.most) {
        this.leap(part.total - this.most);
        continue;
      }
      if (!this.pieces.length) this.start = part.start; // up to three bytes earlier, where a character begins
      if (part.text) this.element.append(this.piece(part, "push"));
      this.end = part.end;
      this.total = part.total;
      this.drop(atEnd ? this.most : READ_BYTES);
      this.show();
      if (atEnd) this.element.scrollTop = this.element.scrollHeight;
      if (part.end >= part.total || !part.text) return;
    }
  }

  async fetchEarlier() {
    this.earlier.disabled = true;
    this.most = READ_BYTES;
    try {
      const { start } = this;
      const from = Math.max(0, start - EARLIER_BYTES);
      const part = await this.fetch(`start=${from}&limit=${start - from}`);
      if (part.attempt !== this.attempt) return this.soon();
      if (this.start !== start) return; // fetchNew has dropped text meanwhile, which this answer does not reach
      this.keepPlace(() => this.element.prepend(this.piece(part, "unshift")));
      this.start = part.start;
      this.show();
    } catch (error) {
      console.warn(error); // the button can be pressed again
    } finally {
      this.earlier.disabled = false;
    }
  }

  /* A later attempt has its own log, of any length: then the text that is shown belongs to the one before. */
  begunAgain({ attempt }) {
    if (attempt === this.attempt) return false;
    this.element.textContent = "";
    Object.assign(this, { attempt, pieces: [], start: 0, end: 0, total: 0, most: KEPT_BYTES });
    return true;
  }

  /* Goes on at `to`, a byte: what was missed before it would be dropped as soon as the end is there. */
  leap(to) {
    this.element.textContent = "";
    Object.assign(this, { pieces: [], start: to, end: to });
  }

  piece({ text, start, end }, add) {
    const node = document.createTextNode(text);
    this.pieces[add]({ node, bytes: end - start });
    return node;
  }

  /* Removes the first pieces as long as the others have `most` bytes. */
  drop(most) {
    const gone = [];
    while (this.pieces.length && this.end - this.start - this.pieces[0].bytes >= most) {
      gone.push(this.pieces[0].node);
      this.start += this.pieces.shift().bytes;
    }
    if (gone.length) this.keepPlace(() => gone.forEach((node) => node.remove()));
  }

  /* Changes the text before what is in view, which stays where it is. */
  keepPlace(change) {
    const height = this.element.scrollHeight;
    change();
    this.element.scrollTop += this.element.scrollHeight - height;
  }

  show() {
    const { element, start, end, total } = this;
    Object.assign(element.dataset, { start, end, total, attempt: this.attempt });
    element.hidden = total === 0;
    this.earlier.hidden = start === 0;
    document.getElementById("log-whole").hidden = total === 0;
    document.getElementById("log-empty").hidden = total !== 0;
    const tail = start ? `, from byte ${start} on` : "";
    document.getElementById("log-size").textContent = `${end - start} of ${total} bytes${tail}`;
  }
}

const numbers = (texts) => Object.fromEntries(Object.entries(texts).map(([name, text]) => [name, Number(text)]));
