// The events of a run as a transcript: messages, tool calls with their results, and what happened between them.
import {asText, brief, startOf} from "./text.mjs";

const NOTES = {
  run_spawned: (e) => `Spawned${e.mode === "fork" ? " as a fork" : ""}${e.model ? ` with ${e.model}` : ""}`,
  run_resumed: (e) => `Continued in another process${e.cut?.length ? `; it is unknown whether ${e.cut.length} calls took effect` : ""}`,
  turn_started: (e) => `Turn ${e.turn}`,
  model_retried: (e) => `The provider failed, attempt ${e.attempt}: ${e.reason}`,
  quota_reached: (e) => `The quota of ${e.model} is used up until ${e.until}`,
  mail_pushed: (e) => `Mail from ${e.sender}: ${e.text ?? ""}`,
  monitor_started: (e) => `Monitors the command: ${e.command}`,
  clamped: (e) => `The limit ${e.field} was set to ${e.given}, not ${e.asked}: the run above has no more`,
  policy_decided: (e) => `A policy adapter decided ${e.verdict}: ${e.reason ?? ""}`,
  budget_refused: (e) => `The budget of ${e.scope} refused ${e.asked} ${e.resource}: ${e.left} left`,
  forward_refused: (e) => `A request to ${e.model} was refused by the ${e.by}`,
  limit_paused: (e) => `Paused at the limit of ${e.scope}: ${e.resource}, ${e.asked} asked, ${e.left} left`,
  limits_raised: (e) => `Limits raised by ${asText(e.add)}`,
  run_silent: (e) => `Silent for ${Math.round(e.silent_s)} s`,
  run_looping: (e) => `Made the same call of ${e.tool} ${e.times} times`,
  run_paused: (e) => `Paused by a person${e.reason ? `: ${e.reason}` : ""}`,
  pause_ended: () => "Resumed by a person",
  moved_to_background: () => "Moved to the background",
  agent_created: (e) => `Created the agent ${e.name}`,
  state_committed: (e) => `Committed ${e.keys} keys to the state ${e.state}, branch ${e.branch}`,
  approval_asked: (e) => `Asked for approval of ${e.tool}: ${e.question}`,
  approval_answered: (e) => `${e.allowed ? "Allowed" : "Denied"} by a person${e.for_run ? " for this run" : ""}${e.reason ? `: ${e.reason}` : ""}`,
  intention_decided: (e) => `The safety gate ${e.committed ? "committed" : "aborted"} ${e.tool}${e.reason ? `: ${e.reason}` : ""}`,
  hook_failed: (e) => `The hook ${e.hook} failed at ${e.event}: ${e.reason}`,
  compacted: (e) => `Compacted from ${e.before_tokens} to ${e.after_tokens} tokens`,
  sandbox_started: (e) => `${e.adopted ? "Adopted" : "Started"} a sandbox: ${e.backend}, ${e.level}`,
  folder_lost: (e) => `Lost its ${e.part ?? "folder"}`,
  run_retried: (e) => `Attempt ${e.attempt} ended as ${e.status}: ${e.reason ?? ""}`,
  result_reused: (e) => `Reused the result of ${e.made_by}`,
  threshold_crossed: (e) => `The sandbox uses ${e.used} of ${e.limit} (${e.resource})`,
  endpoint_asked: (e) => `${e.allowed ? "Reached" : "Was denied"} ${e.host}:${e.port}${e.reason ? `: ${e.reason}` : ""}`,
  command_run: (e) => `The owner ran ${(e.argv ?? []).join(" ")}: exit ${e.code}`,
  notice: (e) => e.text,
};
const BAD = new Set([
  "budget_refused", "hook_failed", "run_silent", "run_looping", "folder_lost", "run_retried", "limit_paused", "clamped",
]);
const RIGHTS = new Set(["clamped", "policy_decided", "budget_refused", "limit_paused", "hook_failed", "intention_decided",
  "sandbox_started", "threshold_crossed", "folder_lost", "forward_refused"]);

/** Return one line that says what an event is about. */
export function describe(event) {
  try {
    return description(event);
  } catch {
    return "Its data has another form than this page knows";
  }
}

function description(event) {
  if (Object.hasOwn(NOTES, event.type)) return brief(NOTES[event.type](event), 400);
  const rest = event.message ?? event.args ?? event.preview ?? event.text ?? event.state ?? event.result ?? event.reason ?? "";
  return brief(`${event.tool ?? ""} ${event.message ? blocksOf(event.message).map((each) => each.text.slice(0, 400)).join(" ") : startOf(rest)}`, 400);
}

/** Return the parts of a message's content: text, thinking, or data of another kind. */
export function blocksOf(message) {
  const content = message?.content ?? "";
  const blocks = Array.isArray(content) ? content : [content];
  return blocks.flatMap((each) => {
    if (typeof each === "string") return each ? [{kind: "text", text: each}] : [];
    if (!each || typeof each !== "object") return [{kind: "other", text: asText(each)}];
    if (typeof each.text === "string" && (each.type ?? "text") === "text") return each.text ? [{kind: "text", text: each.text}] : [];
    if (each.type === "thinking" || each.type === "reasoning") {
      return [{kind: "thinking", text: asText(each.thinking ?? each.reasoning ?? each.text ?? each.summary ?? "")}];
    }
    if (each.type === "tool_use" || each.type === "function_call") return [];
    return [{kind: "other", label: brief(each.type ?? "data", 40), text: asText(each).slice(0, 20_000)}];
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
      this.#add({kind: "note", type: "", text: `Event ${event.seq} cannot be shown`, isBad: true, at: event.at, seq: event.seq});
    }
  }

  #apply(event) {
    const {type, at, seq} = event;
    if (RIGHTS.has(type)) this.rights.push(event);
    if (type === "sandbox_started") this.sandbox = event;
    if (type === "text_delta") return this.#delta(event);
    if (type === "message_discarded") return this.#discard(event.step_id);
    if (type === "message_recorded") return this.#message(event);
    if (type === "tool_started") return Object.assign(this.#call(event.call_id, event), {args: event.args ?? {}, isOpen: true});
    if (type === "tool_progressed") return Object.assign(this.#call(event.call_id, event), {progress: event});
    if (type === "tool_ended") {
      return Object.assign(this.#call(event.call_id, event), {
        isOpen: false, status: event.status, preview: event.preview, elapsed_ms: event.elapsed_ms, spilled: event.spilled_to,
      });
    }
    if (type === "run_ended") return this.#add({kind: "end", result: event.result, at, seq});
    if (type === "endpoint_asked") {
      const name = `${event.host}:${event.port}`, each = this.endpoints.get(name) ?? {allowed: 0, denied: 0, reason: ""};
      each[event.allowed ? "allowed" : "denied"] += 1;
      each.reason = event.reason || each.reason;
      this.endpoints.set(name, each);
    }
    if (Object.hasOwn(NOTES, type) && type !== "intention_decided") {
      this.#add({kind: "note", type, text: describe(event), isBad: BAD.has(type), at, seq});
    }
  }

  #add(item) {
    item.key = this.#count++;
    this.items.push(item);
  }

  #call(id, event) {
    let call = this.#calls.get(id);
    if (!call) {
      call = {kind: "call", id, tool: event.tool ?? event.name ?? "", args: event.args ?? {}, at: event.at, seq: event.seq};
      if (id) this.#calls.set(id, call);
      this.#add(call);
    }
    return call;
  }

  #message({message, at, seq, step_id, usage, exhausted}) {
    this.#discard(step_id);
    const kind = message?.type;
    if (kind === "tool") {
      const call = this.#call(message.tool_call_id, {tool: message.name, at, seq});
      return Object.assign(call, {isOpen: false, result: blocksOf(message), status: call.status ?? (message.status === "error" ? "error" : "ok")});
    }
    const blocks = blocksOf(message);
    if (blocks.length) this.#add({kind: "message", role: kind ?? "?", name: message?.name, blocks, at, seq, usage, exhausted});
    for (const each of message?.tool_calls ?? []) this.#call(each.id, {tool: each.name, args: each.args, at, seq});
    for (const each of message?.invalid_tool_calls ?? []) {
      this.#add({kind: "note", text: brief(`An invalid call of ${each.name}: ${each.error ?? asText(each.args)}`, 400), isBad: true, at, seq});
    }
  }

  #delta({step_id, text, at}) {
    let item = this.#partial.get(step_id);
    if (!item) {
      item = {kind: "message", role: "ai", isPartial: true, blocks: [{kind: "text", text: ""}], at, seq: 0};
      this.#partial.set(step_id, item);
      this.#add(item);
    }
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
