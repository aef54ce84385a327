// Requests to the server. Every one of them carries the token in a header; none carries a cookie.
import {readEvents} from "./sse.mjs";

/** An answer that is not a success. `detail` is one sentence for people; `status` 0 means that no server answered. */
export class Refusal extends Error {
  constructor(status, detail) {
    super(detail);
    Object.assign(this, {status, detail});
  }
}

/** Return a key for one act. `randomUUID` is missing where the page came without TLS from another machine. */
export const newKey = () => Array.from(crypto.getRandomValues(new Uint8Array(16)), (each) => each.toString(16).padStart(2, "0")).join("");

export class Api {
  constructor(token, onLocked = () => {}) {
    Object.assign(this, {token, onLocked});
  }

  async request(method, path, {body, signal, headers, key} = {}) {
    const all = {authorization: `Bearer ${this.token}`, ...headers};
    if (body !== undefined) all["content-type"] = "application/json";
    if (key) all["idempotency-key"] = key;
    let answer;
    try {
      answer = await fetch(path, {
        method, signal, headers: all, body: body === undefined ? undefined : JSON.stringify(body),
        credentials: "omit", cache: "no-store", redirect: "error", referrerPolicy: "no-referrer",
      });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Refusal(0, "The server does not answer.");
    }
    if (!answer.ok) {
      const problem = await answer.json().catch(() => ({}));
      if (answer.status === 401) this.onLocked();
      throw new Refusal(answer.status, String(problem.detail || problem.title || `HTTP ${answer.status}`));
    }
    return answer;
  }

  async get(path, options) {
    return (await this.request("GET", path, options)).json();
  }

  /** Send a POST. Sent again with the same `key`, it does nothing again. Return the receipt; null for an empty answer. */
  async post(path, body, {key = newKey(), ...options} = {}) {
    const answer = await this.request("POST", path, {body, key, ...options});
    const text = await answer.text();
    return text ? JSON.parse(text) : null;
  }

  /** Yield the server-sent events of a path. A stream without a byte for `silence_s` is dead: raise Refusal. */
  async *stream(path, {signal, after, silence_s = 45} = {}) {
    const silence = new AbortController();
    const stop = () => silence.abort();
    signal?.addEventListener("abort", stop);
    const headers = {accept: "text/event-stream", ...(after ? {"last-event-id": String(after)} : {})};
    let timer;
    const heard = () => {
      clearTimeout(timer);
      timer = setTimeout(stop, silence_s * 1000);
    };
    try {
      heard();
      const answer = await this.request("GET", path, {signal: silence.signal, headers});
      yield* readEvents(answer.body, heard);
    } catch (error) {
      if (signal?.aborted || error instanceof Refusal) throw error;
      throw new Refusal(0, error.name === "AbortError" ? "The server has fallen silent." : "The stream broke off.");
    } finally {
      clearTimeout(timer);
      signal?.removeEventListener("abort", stop);
      stop();
    }
  }

  /** Return all pages of a list, at most `most` entries; `cut` says that there are more. */
  async pages(path, name, {most = 20_000, signal} = {}) {
    const entries = [];
    let after = "";
    do {
      const query = `${path.includes("?") ? "&" : "?"}limit=1000${after ? `&after=${encodeURIComponent(after)}` : ""}`;
      const page = await this.get(path + query, {signal});
      entries.push(...page[name]);
      after = page.more;
    } while (after && entries.length < most);
    return {entries, cut: Boolean(after)};
  }
}

export const runPath = (run, rest = "") => `/v1/runs/${encodeURIComponent(run)}${rest}`;
