// Requests to the server. Every one of them carries the token in a header; none carries a cookie.
import {readEvents} from "./sse.mjs";
import {hex} from "./token.mjs";

const SILENCE_MS = 45_000;

/** An answer that is not a success. `detail` is one sentence for people; `status` 0 means that no server answered. */
export class Refusal extends Error {
  constructor(status, detail) {
    super(detail);
    Object.assign(this, {status, detail});
  }
}

const refusalOf = ({status, detail, title}, code = status || 500) => new Refusal(code, String(detail || title || `HTTP ${code}`));

/** Return a key for one act. `randomUUID` is missing where the page came without TLS from another machine. */
export const newKey = () => hex(crypto.getRandomValues(new Uint8Array(16)));

export class Api {
  constructor(token, onLocked = () => {}) {
    Object.assign(this, {token, onLocked});
  }

  async request(method, path, {body, signal, headers, key} = {}) {
    const all = {authorization: `Bearer ${this.token}`, ...headers};
    if (body) all["content-type"] = "application/json";
    if (key) all["idempotency-key"] = key;
    const answer = await fetch(path, {
      method, signal, headers: all, body: body && JSON.stringify(body),
      credentials: "omit", cache: "no-store", redirect: "error", referrerPolicy: "no-referrer",
    }).catch((error) => {
      throw error.name === "AbortError" ? error : new Refusal(0, "The server does not answer.");
    });
    if (answer.ok) return answer;
    if (answer.status === 401) this.onLocked();
    throw refusalOf(await answer.json().catch(() => ({})), answer.status);
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

  /** Yield the server-sent events of a path. At an error, and after a time without a byte, raise Refusal. */
  async *stream(path, {signal, after}) {
    const silence = new AbortController(), stop = () => silence.abort();
    const headers = {accept: "text/event-stream", ...(after && {"last-event-id": after})};
    let timer;
    const heard = () => {
      clearTimeout(timer);
      timer = setTimeout(stop, SILENCE_MS);
    };
    signal.addEventListener("abort", stop);
    try {
      heard();
      const answer = await this.request("GET", path, {signal: silence.signal, headers});
      for await (const event of readEvents(answer.body, heard)) {
        if (event.type === "error") throw refusalOf(JSON.parse(event.data));
        yield event;
      }
    } catch (error) {
      if (signal.aborted || error instanceof Refusal) throw error;
      throw new Refusal(0, error.name === "AbortError" ? "The server has fallen silent." : "The stream broke off.");
    } finally {
      clearTimeout(timer);
      signal.removeEventListener("abort", stop);
      stop();
    }
  }

  /** Return all pages of a list, at most `most` entries; `cut` says that there are more. */
  async pages(path, name, {most = 20_000, signal} = {}) {
    const entries = [];
    let after = "";
    do {
      const page = await this.get(`${path + (path.includes("?") ? "&" : "?")}limit=1000${after && `&after=${encodeURIComponent(after)}`}`, {signal});
      entries.push(...page[name]);
      after = page.more;
    } while (after && entries.length < most);
    return {entries, cut: Boolean(after)};
  }
}

export const runPath = (run, rest = "") => `/v1/runs/${encodeURIComponent(run)}${rest}`;
