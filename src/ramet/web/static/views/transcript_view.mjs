// A transcript on the page. Only the newest items are drawn at first; tool calls and thinking are folded.
import {html, useState} from "../html.mjs";
import {clock, duration, money, plural} from "../data/format.mjs";
import {brief, startOf} from "../data/text.mjs";
import {LongWords, RunLink, Words} from "./words.mjs";

const FIRST = 200;
const ROLES = {__proto__: null, human: "Prompt", ai: "Agent", system: "System"};

function Blocks({blocks}) {
  return blocks.map((each) => (each.kind === "text" ? html`<${LongWords} text=${each.text} />`
    : html`<details class="thinking"><summary>${each.kind === "thinking" ? "Thinking" : brief(each.label ?? "data", 40)}</summary><${LongWords} text=${each.text} isCode=${each.kind !== "thinking"} /></details>`));
}

function Call({call}) {
  const [isOpen, setOpen] = useState(false);
  const status = call.isOpen ? "under way" : call.status ?? "no answer yet";
  return html`<details class=${`call ${call.status && call.status !== "ok" ? "bad" : ""}`} onToggle=${(event) => setOpen(event.currentTarget.open)}>
    <summary><b><${Words} text=${call.tool} most=${60} /></b> <span class="soft"><${Words} text=${startOf(call.args)} most=${110} /></span>
      <span class="status">${brief(status, 30)}${call.elapsed_ms ? ` ${duration(call.elapsed_ms) === "0s" ? `${Math.round(call.elapsed_ms)} ms` : duration(call.elapsed_ms)}` : ""}</span></summary>
    ${isOpen && html`<h3>Arguments</h3><${LongWords} text=${call.args} isCode />
      <h3>Result</h3>${call.result ? call.result.map((each) => html`<${LongWords} text=${each.text} isCode />`)
        : call.preview ? html`<${LongWords} text=${call.preview} isCode />` : html`<p class="soft">${status}</p>`}
      ${call.spilled && html`<p class="soft">The whole result is in <${Words} text=${call.spilled} /></p>`}`}
    ${call.progress && call.isOpen && html`<p class="soft">${call.progress.done}${call.progress.total ? ` of ${call.progress.total}` : ""} <${Words} text=${call.progress.text ?? ""} /></p>`}
  </details>`;
}

function End({item}) {
  const result = item.result ?? {};
  return html`<div class=${`end ${result.status === "completed" ? "" : "bad"}`}><b>Ended: ${brief(result.status ?? "", 40).replaceAll("_", " ")}</b>
    ${result.error && html`<${LongWords} text=${`${result.error.type}: ${result.error.message}`} />`}
    ${result.value !== undefined && result.value !== null && html`<${LongWords} text=${result.value} />`}
    ${result.partial && html`<h3>Found until then</h3><${LongWords} text=${result.partial} />`}</div>`;
}

function Item({item, onFork}) {
  const time = html`<span class="time">${clock(item.at)}</span>`;
  const fork = onFork && item.seq ? html`<button type="button" class="quiet fork" onClick=${() => onFork(item)}>Fork from here</button>` : "";
  if (item.kind === "child") {
    return html`<div class="item note">${time}<span>Spawned <${RunLink} id=${item.row.id} text=${item.row.path} /></span></div>`;
  }
  if (item.kind === "note") return html`<div class=${`item note ${item.isBad ? "bad" : ""}`}>${time}<${Words} text=${item.text} most=${400} tag="span" /></div>`;
  if (item.kind === "call") return html`<div class="item">${time}<${Call} call=${item} /></div>`;
  if (item.kind === "end") return html`<div class="item">${time}<${End} item=${item} /></div>`;
  return html`<article class=${`item message ${item.role}`} aria-label=${ROLES[item.role] ?? "Message"}>${time}
    <div><header><b>${ROLES[item.role] ?? brief(item.role, 20)}</b>${item.name && html` <${Words} text=${item.name} most=${40} />`}
      ${item.isPartial && html` <span class="soft">streaming…</span>`}
      ${item.usage && html` <span class="soft">${plural((item.usage.input_tokens ?? 0) + (item.usage.output_tokens ?? 0), "token")}, ${money(item.usage.usd ?? 0)} USD</span>`}
      ${item.exhausted && html` <span class="high">the budget of ${brief(item.exhausted, 30)} is used up</span>`}${fork}</header>
      <${Blocks} blocks=${item.blocks} /></div></article>`;
}

/** The items, with the children where they were spawned; the newest ones first to be drawn, in their order. */
export function TranscriptView({transcript, spawned, onFork}) {
  const [most, setMost] = useState(FIRST);
  const items = merge(transcript.items, spawned);
  const hidden = Math.max(0, items.length - most);
  if (!items.length) return html`<p class="soft">Nothing is recorded yet.</p>`;
  return html`<div class="transcript">
    ${hidden > 0 && html`<button type="button" class="quiet" onClick=${() => setMost(most + 500)}>Show earlier items (${hidden.toLocaleString("en")} hidden)</button>`}
    ${items.slice(hidden).map((each) => html`<${Item} key=${each.key} item=${each} onFork=${onFork} />`)}
  </div>`;
}

const childItem = (row) => ({kind: "child", key: row.id, row, at: row.born});

function merge(items, spawned) {
  if (!spawned?.length) return items;
  const rest = [...spawned].sort((a, b) => a.bornAt - b.bornAt), all = [];
  let next = 0;
  for (const item of items) {
    const at = Date.parse(item.at) || 0;
    while (next < rest.length && rest[next].bornAt < at) all.push(childItem(rest[next++]));
    all.push(item);
  }
  while (next < rest.length) all.push(childItem(rest[next++]));
  return all;
}
