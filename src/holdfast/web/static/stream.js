// Reads the event stream of snapshots and reopens it when it ends. It uses fetch and not EventSource, so that the
// token goes into a header and the reason for a refusal is known.

const SILENCE_MS_MAX = 12_000; // The node sends at least a comment every five seconds.
const SENDABLE = /^[!-~]*$/; // Only these characters can be sent in a header.
const RETRY_MS = [250, 500, 1000, 2000, 4000];

export class Stream {
  #token;
  #tries = 0;
  #wake = () => {};
  #abort = () => {};
  #restarted = false; // A new token was given: requests with the old one are ignored.

  // `onContact` receives "live", "lost" (with a reason) or "locked"; `onSnapshot` gets each status.
  constructor({ token, onSnapshot, onContact }) {
    this.#token = token;
    this.onSnapshot = onSnapshot;
    this.onContact = onContact;
    addEventListener("online", () => this.retryNow());
    document.addEventListener("visibilitychange", () => document.hidden || this.retryNow());
    this.#run();
  }

  retryNow() {
    this.#wake();
  }

  unlock(token) {
    this.#token = token;
    this.#restarted = true;
    this.#abort();
    this.#wake();
  }

  async #run() {
    for (;;) {
      this.#restarted = false;
      const refusal = await this.#read();
      if (this.#restarted) continue;
      const locked = refusal === "locked";
      this.onContact(locked ? "locked" : "lost", refusal);
      await this.#pause(locked ? Infinity : RETRY_MS[Math.min(this.#tries++, RETRY_MS.length - 1)]);
    }
  }

  // Reads until the stream ends; returns why it did.
  async #read() {
    if (!SENDABLE.test(this.#token)) return "locked";
    const abort = new AbortController();
    this.#abort = () => abort.abort();
    const watchdog = new Watchdog(() => abort.abort());
    try {
      const headers = this.#token ? { Authorization: `Bearer ${this.#token}` } : {};
      const response = await fetch("api/events", { headers, signal: abort.signal, cache: "no-store" });
      if (response.status === 401) return "locked";
      if (!response.ok) return (await response.text()).trim();
      this.#tries = 0;
      await this.#follow(response.body, watchdog);
      return "";
    } catch {
      return "";
    } finally {
      watchdog.stop();
      abort.abort();
    }
  }

  async #follow(body, watchdog) {
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    let pending = [];
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      watchdog.feed();
      pending.push(value);
      // The end of an event can be split between two pieces, so the rest is kept in front of the next one.
      if (!value.includes("\n")) continue;
      const events = pending.join("").split("\n\n");
      pending = [events.pop()];
      for (const event of events) if (event.startsWith("data: ")) this.#take(event.slice(6));
    }
  }

  #take(data) {
    this.onContact("live", "");
    this.onSnapshot(JSON.parse(data));
  }

  #pause(ms) {
    return new Promise((resolve) => {
      const timer = ms === Infinity ? 0 : setTimeout(resolve, ms);
      this.#wake = () => {
        clearTimeout(timer);
        this.#wake = () => {};
        resolve();
      };
    });
  }
}

// A connection can be dead without either end noticing; silence shows it.
class Watchdog {
  #bite;
  #timer;

  constructor(bite) {
    this.#bite = bite;
    this.feed();
  }

  feed() {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(this.#bite, SILENCE_MS_MAX);
  }

  stop() {
    clearTimeout(this.#timer);
  }
}
