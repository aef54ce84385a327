// The events of a run as a transcript: messages, tool calls with their results, and what happened between them.
import {asText, brief, startOf} from "./text.mjs";

// What is said about an event: {name} is a value of it, {words|name} the words and the value unless that is empty.
const NOTES = {
  __proto__: null,
  run_spawned: (e) => `Spawned${e.mode === "fork" ? " as a fork" : ""}{ with |model}`,
  run_resumed: (e) => `Continued in another process${e.cut?.length ? `; it is unknown whether ${e.cut.length} calls took effect` : ""}`,
  turn_started: "Turn {turn}",
  model_retried: "The provider failed, attempt {attempt}: {reason}",
  quota_reached: "The quota of {model} is used up until {until}",
  mail_pushed: "Mail from {sender}: {text}",
  monitor_started: "Monitors the command: {command}",
  clamped: "The limit {field} was set to {given}, not {asked}: the run above has no more",
  policy_decided: "A policy adapter decided {verdict}: {reason}",
  budget_refused: "The budget of {scope} refused {asked} {resource}: {left} left",
  forward_refused: "A request to {model} was refused by the {by}",
  limit_paused: "Paused at the limit of {scope}: {resource}, {asked} asked, {left} left",
  limits_raised: "Limits raised by {add}",
  run_silent: (e) => `Silent for ${Math.round(e.silent_s)} s`,
  run_looping: "Made the same call of {tool} {times} times",
  run_paused: "Paused by a person{: |reason}",
  pause_ended: "Resumed by a person",
  moved_to_background: "Moved to the background",
  agent_created: "Created the agent {name}",
  state_committed: "Committed {keys} keys to the state {state}, branch {branch}",
  approval_asked: "Asked for approval of {tool}: {question}",
  approval_answered: (e) => `${e.allowed ? "Allowed" : "Denied"} by a person${e.for_run ? " for this run" : ""}{: |reason}`,
  intention_decided: (e) => `The safety gate ${e.committed ? "committed" : "aborted"} {tool}{: |reason}`,
  hook_failed: "The hook {hook} failed at {event}: {reason}",
  compacted: "Compacted from {before_tokens} to {after_tokens} tokens",
  sandbox_started: (e) => `${e.adopted ? "Adopted" : "Started"} a sandbox: {backend}, {level}`,
  folder_lost: (e) => `Lost its ${e.part ? "{part}" : "folder"}`,
  run_retried: "Attempt {attempt} ended as {status}: {reason}",
  result_reused: "Reused the result of {made_by}",
  threshold_crossed: "The sandbox uses {used} of {limit} ({resource})",
  endpoint_asked: (e) => `${e.allowed ? "Reached" : "Was denied"} {host}:{port}{: |reason}`,
  command_run: "The owner ran {argv}: exit {code}",
  notice: "{text}",
};
const BAD = new Set([
  "budget_refused", "hook_failed", "run_silent", "run_looping", "folder_lost", "run_retried", "limit_paused", "clamped",
]);
const RIGHTS = new Set(["clamped", "policy_decided", "budget_refused", "limit_paused", "hook_failed", "intention_decided",
  "sandbox_started", "threshold_crossed", "folder_lost", "forward_refused"]);

const said = (value) => (Array.isArray(value) ? value.join(" ") : asText(value ?? ""));

/** Return one line that says what an event is about. */
export function describe(event) {
  const {type, tool = "", message} = event;
  try {
    let text = NOTES[type];
    if (text?.call) text = text(event);
    text = text ? text.replace(/{(?:([^|}]*)\|)?(\w+)}/g, (_, before = "", name) => (event[name] ? before : "") + said(event[name]))
      : `${tool} ${message ? blocksOf(message).map((each) => each.text.slice(0, 400)).join(" ")
        : startOf(event.args ?? event.preview ?? event.text ?? event.state ?? event.result ?? event.reason ?? "")}`;
    return brief(text, 400);
  } catch {
    return "Its data has another form than this page knows";
  }
}

/** Return the parts of a message's content: text, thinking, or data of another kind. */
export function blocksOf(message) {
  const content = message?.content ?? "";
  return (Array.isArray(content) ? content : [content]).flatMap((each) => {
    const {type = "text", text} = typeof each === "string" ? {text: each} : each ?? {};
    if (type === "text" && typeof text === "string") return text ? {kind: "text", text} : [];
    if (type === "thinking" || type === "reasoning") return {kind: "thinking", text: asText(each.thinking ?? each.reasoning ?? text ?? each.summary ?? "")};
    if (type === "tool_use" || type === "function_call") return [];
    return {kind: "other", label: brief(type, 40), text: asText(each).slice(0, 20_000)};
  });
}

export class Transcript {
  items = [];
  rights = []; //: events about limits, refused rights and the sandbox
  endpoints = new Map(); //: by host and port: how often allowed and denied
  sandbox = null; //: the newest sandbox_started
  #calls = new Map();
  #partial = new Map();
  #count = 0;

  /** Add one event. The events of one run come in their order. One that cannot be shown is a note that says so. */
  apply(event) {
    try {
      this.#apply(event);
    } catch {
      this.#add(event, {kind: "note", text: `Event ${event.seq} cannot be shown`, isBad: true});
    }
  }

  #apply(event) {
    const {type, step_id, status, preview, elapsed_ms, spilled_to: spilled} = event;
    if (RIGHTS.has(type)) this.rights.push(event);
    if (type === "sandbox_started") this.sandbox = event;
    if (type === "text_delta") this.#delta(event);
    if (type === "message_discarded") this.#discard(step_id);
    if (type === "message_recorded") this.#message(event);
    if (type === "tool_started") this.#call(event, {args: event.args ?? {}, isOpen: true});
    if (type === "tool_progressed") this.#call(event, {progress: event});
    if (type === "tool_ended") this.#call(event, {isOpen: false, status, preview, elapsed_ms, spilled});
    if (type === "run_ended") this.#add(event, {kind: "end", result: event.result});
    if (type === "endpoint_asked") {
      const name = `${event.host}:${event.port}`, each = this.endpoints.get(name) ?? {allowed: 0, denied: 0, reason: ""};
      each[event.allowed ? "allowed" : "denied"] += 1;
      each.reason = event.reason || each.reason;
      this.endpoints.set(name, each);
    }
    if (NOTES[type] && type !== "intention_decided") this.#add(event, {kind: "note", text: describe(event), isBad: BAD.has(type)});
  }

  #add({at, seq}, item) {
    this.items.push(Object.assign(item, {key: this.#count++, at, seq}));
    return item;
  }

  /** Change the call that an event is about, which is added if it is not known. */
  #call({call_id: id, tool, args, at, seq}, changes) {
    const call = this.#calls.get(id) ?? this.#add({at, seq}, {kind: "call", id, tool: tool ?? "", args: args ?? {}});
    if (id) this.#calls.set(id, call);
    return Object.assign(call, changes);
  }

  #message(event) {
    const {message, at, seq, step_id, usage, exhausted} = event, {type: role = "?", name, status} = message ?? {}, blocks = blocksOf(message);
    this.#discard(step_id);
    if (role === "tool") {
      const call = this.#call({call_id: message.tool_call_id, tool: name, at, seq}, {isOpen: false, result: blocks});
      call.status ??= status === "error" ? status : "ok";
      return;
    }
    if (blocks.length) this.#add(event, {kind: "message", role, name, blocks, usage, exhausted});
    for (const each of message?.tool_calls ?? []) this.#call({call_id: each.id, tool: each.name, args: each.args, at, seq});
    for (const each of message?.invalid_tool_calls ?? []) {
      this.#add(event, {kind: "note", text: brief(`An invalid call of ${each.name}: ${each.error ?? asText(each.args)}`, 400), isBad: true});
    }
  }

  #delta({step_id, text, at}) {
    const item = this.#partial.get(step_id)
      ?? this.#add({at, seq: 0}, {kind: "message", role: "ai", isPartial: true, blocks: [{kind: "text", text: ""}]});
    this.#partial.set(step_id, item);
    item.blocks[0].text += text;
  }

  #discard(step_id) {
    const item = step_id && this.#partial.get(step_id);
    if (!item) return;
    this.#partial.delete(step_id);
    this.items.splice(this.items.indexOf(item), 1);
  }
}

/** Return the transcript of these events. */
export function transcriptOf(events) {
  const transcript = new Transcript();
  for (const each of events) transcript.apply(each);
  return transcript;
}
