// The stream of changes: read, resumed by its cursor, and shared by the tabs of one browser through a leader.
import {Refusal} from "./api.mjs";
import {fingerprint} from "./token.mjs";

const FIRST_WAIT_MS = 500, LONGEST_WAIT_MS = 10_000, JOIN_MS = 3_000, EMPTY_MS = 2_000;

const pause = (ms, signal) => new Promise((resolve) => {
  const timer = setTimeout(resolve, ms);
  signal.addEventListener("abort", () => (clearTimeout(timer), resolve()), {once: true});
});

/** Read the changes until `signal`; apply them to `rows`. `onState` hears connecting, live, gone and refused. */
export async function follow(api, rows, {ended, signal, onState, onMessage = () => {}}) {
  let wait = FIRST_WAIT_MS;
  while (!signal.aborted) {
    if (!rows.isComplete) onState({kind: "connecting"});
    try {
      let isFirst = !rows.cursor;
      const query = new URLSearchParams({ended: String(ended), interval_ms: "200"});
      if (rows.cursor) query.set("after", rows.cursor);
      for await (const event of api.stream(`/v1/changes?${query}`, {signal})) {
        if (event.type !== "changes") break;
        const change = JSON.parse(event.data);
        change.reset ||= isFirst;
        isFirst = false;
        rows.apply(change, event.id);
        onMessage(change, event.id);
        wait = FIRST_WAIT_MS;
        onState({kind: "live"});
      }
      throw new Refusal(0, "The stream has ended.");
    } catch (error) {
      if (signal.aborted) return;
      if (error.status === 401) return onState({kind: "refused", detail: error.detail});
      if (error.status === 404 && !rows.cursor) { // No run was recorded there yet.
        rows.apply({});
        onState({kind: "empty"});
        await pause(EMPTY_MS, signal);
        continue;
      }
      if ([404, 410, 422].includes(error.status) && rows.cursor) rows.cursor = ""; // The cursor is of another journal.
      onState({kind: "gone", detail: error.detail || String(error), retryAt: Date.now() + wait});
      await pause(wait * (0.75 + Math.random() / 2), signal);
      wait = Math.min(wait * 2, LONGEST_WAIT_MS);
    }
  }
}

/**
 * Follow the changes in the leader of all tabs with this token; in the others, hear what the leader tells.
 * When the leader closes, its lock passes to another tab, which goes on after the newest cursor.
 */
export async function share(api, rows, options) {
  const {ended, signal, onState} = options;
  const print = await fingerprint(api.token);
  if (!print || !navigator.locks || !globalThis.BroadcastChannel) return follow(api, rows, options);
  const name = `ramet-feed-${print}-${ended}`, channel = new BroadcastChannel(name), me = Math.random();
  let isLeader = false, hasPicture = false, isHeard = false, state = {kind: "connecting"};
  const tell = (value) => onState({...value, isLeader});
  channel.onmessage = ({data}) => {
    if (isLeader) {
      if (data.kind !== "join") return;
      isHeard = true;
      channel.postMessage({kind: "picture", to: data.from, cursor: rows.cursor, change: rows.picture(), state});
    } else if (data.kind === "picture" && data.to === me) {
      hasPicture = true;
      stopOwn();
      rows.apply({...data.change, reset: true}, data.cursor);
      tell(data.state);
    } else if (data.kind === "change" && hasPicture) {
      rows.apply(data.change, data.cursor);
    } else if (data.kind === "state") {
      tell(data.state);
    }
  };
  channel.postMessage({kind: "join", from: me});
  const own = new AbortController(); // A leader that does not answer is not waited for.
  const stopOwn = () => own.abort();
  signal.addEventListener("abort", stopOwn);
  const late = setTimeout(() => hasPicture || follow(api, rows, {...options, signal: own.signal}), JOIN_MS);
  try {
    await navigator.locks.request(name, {signal}, async () => {
      isLeader = true;
      isHeard = hasPicture; // Other tabs may have got theirs from the last leader.
      clearTimeout(late);
      stopOwn();
      await follow(api, rows, {
        ...options,
        onState: (value) => {
          state = value;
          tell(value);
          channel.postMessage({kind: "state", state});
        },
        onMessage: (change, cursor) => isHeard && channel.postMessage({kind: "change", change, cursor}),
      });
    });
  } catch (error) {
    if (error.name !== "AbortError") throw error;
  } finally {
    clearTimeout(late);
    channel.close();
  }
}
