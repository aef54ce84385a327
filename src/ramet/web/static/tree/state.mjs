// What the state of a run is called, and what it may be asked to do. A run has ended only when the server says so.
import {spaced} from "../data/format.mjs";

const WAITS = {
  __proto__: null, // A name such as "constructor" is none of these.
  person: "a person", limit: "a limit", pause: "the end of a pause", quota: "a quota window", room: "free capacity",
  child: "a child", slot: "a slot", mail: "mail", model: "the model", tool: "a tool",
};
const BAD = ["failed", "timeout", "budget_exhausted", "oom", "crashed", "lost"];
const STATUSES = [...BAD, "completed", "cancelled", "needs_input"];

/** Return the words for a run's state and the kind of it, which gives the colour. */
export function stateOf(row) {
  const {state, waits_for: what} = row, words = spaced(state);
  if (row.is_over) return {text: `ended: ${words}`, kind: BAD.includes(state) ? "bad" : "over"};
  if (STATUSES.includes(state)) return {text: `ending: ${words}`, kind: "wait"};
  if (state === "interrupted") return {text: words, kind: "bad"};
  const waits = what ? `waits for ${WAITS[what] ?? what}` : "";
  if (waitsForPerson(row)) return {text: waits, kind: "ask"};
  if (isPaused(row)) return {text: "paused", kind: "ask"};
  return {text: waits && state !== "idle" ? waits : words, kind: what ? "wait" : "work"};
}

const waitsForPerson = ({waits_for: what}) => what === "person" || what === "limit";

export const isPaused = (row) => row.waits_for === "pause" || (row.state === "paused" && row.waits_for !== "limit");
export const isInterrupted = (row) => !row.is_over && row.state === "interrupted";
export const canAct = (row) => !row.is_over && !isInterrupted(row);
export const silentFor = (row, now) => (row.is_over || !row.lastAt ? 0 : Math.max(0, now - row.lastAt));
export const elapsed = (row, now) => (row.bornAt ? (row.is_over ? row.endedAt : now) - row.bornAt : 0);

/** Return the name of a run among its siblings; of a root, its whole path. */
export function nameOf(row) {
  const path = shownPath(row);
  return row.parent ? path.slice(path.lastIndexOf("/") + 1) : path;
}

/** Return the path for people: an agent of a server is named by its own path. */
export const shownPath = (row) =>
  (row.agent_path ? row.agent_path + String(row.path).replace(/^main/, "") : String(row.path));

let counted = {};

/** Return how many questions and runs at limits wait for a person, as far as the rows tell. */
export function waitingCount(rows) {
  if (counted.rows === rows && counted.version === rows.version) return counted.count;
  counted = {rows, version: rows.version, count: 0};
  for (const {row} of rows.nodes.values()) if (!row.is_over) counted.count += row.approvals?.length || Number(waitsForPerson(row));
  return counted.count;
}
