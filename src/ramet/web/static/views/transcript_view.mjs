// A transcript on the page. Only the newest items are drawn at first; tool calls and thinking are folded.
import {brief, button, clock, code, duration, Folded, grouped, html, money, none, plural, prose, runLink, soft, spaced,
  startOf, useState, words} from "./words.mjs";

const FIRST = 200;
const ROLES = {__proto__: null, human: "Prompt", ai: "Agent", system: "System"};

const block = ({kind, label, text}) => (kind === "text" ? prose(text)
  : html`<${Folded} kind="thinking" summary=${kind === "thinking" ? "Thinking" : brief(label ?? "data", 40)} draw=${() => (kind === "thinking" ? prose : code)(text)} />`);

function call({tool, args, isOpen, status: known, elapsed_ms, result, preview, spilled, progress}) {
  const status = isOpen ? "under way" : known ?? "no answer yet";
  return html`<div><${Folded} kind=${`call ${known && known !== "ok" ? "bad" : ""}`}
    summary=${html`<b>${words(tool, 60)}</b> ${soft(words(startOf(args), 110))}<span class="status">${brief(status, 30)}${elapsed_ms ? ` ${duration(elapsed_ms)}` : ""}</span>`}
    draw=${() => html`<h2>Arguments</h2>${code(args)}<h2>Result</h2>${result?.map((each) => code(each.text)) ?? (preview ? code(preview) : none(status))}
      ${spilled && none(html`The whole result is in ${words(spilled)}`)}`} />
    ${progress && isOpen && none(html`${progress.done}${progress.total ? ` of ${progress.total}` : ""} ${words(progress.text ?? "")}`)}</div>`;
}

const end = ({status, error, value, partial} = {}) => html`<div class=${`end ${status === "completed" ? "" : "bad"}`}><b>Ended: ${spaced(brief(status, 40))}</b>
  ${error && prose(`${error.type}: ${error.message}`)}${value !== undefined && value !== null && prose(value)}
  ${partial && html`<h2>Found until then</h2>${prose(partial)}`}</div>`;

function message({role, name, isPartial, usage, exhausted, blocks}, fork) {
  return html`<div><header><b>${ROLES[role] ?? brief(role, 20)}</b> ${name && words(name, 40)} ${isPartial && soft("streaming…")}
    ${usage && soft(`${plural((usage.input_tokens ?? 0) + (usage.output_tokens ?? 0), "token")}, ${money(usage.usd ?? 0)} USD`)}
    ${exhausted && html`<span class="high">the budget of ${brief(exhausted, 30)} is used up</span>`}${fork}</header>${blocks.map(block)}</div>`;
}

function Item({item, onFork}) {
  const {kind, role} = item, time = html`<span class="time">${clock(item.at)}</span>`;
  if (kind === "message") {
    const fork = onFork && item.seq > 0 && button("Fork from here", () => onFork(item), "quiet fork");
    return html`<article class=${`item message ${role}`} aria-label=${ROLES[role] ?? "Message"}>${time}${message(item, fork)}</article>`;
  }
  return html`<div class=${`item ${kind === "child" ? "note" : kind} ${item.isBad ? "bad" : ""}`}>${time}${kind === "call" ? call(item)
    : kind === "end" ? end(item.result) : kind === "note" ? words(item.text, 400) : html`<span>Spawned ${runLink(item.row.id, item.row.path)}</span>`}</div>`;
}

/** The items, with the children where they were spawned; the newest ones first to be drawn, in their order. */
export function TranscriptView({transcript, spawned, onFork}) {
  const [most, setMost] = useState(FIRST);
  const items = merge(transcript.items, spawned), hidden = Math.max(0, items.length - most);
  if (!items.length) return none("Nothing is recorded yet.");
  return html`<div class="transcript">
    ${hidden > 0 && button(`Show earlier items (${grouped(hidden)} hidden)`, () => setMost(most + 500), "quiet")}
    ${items.slice(hidden).map((each) => html`<${Item} key=${each.key} item=${each} onFork=${onFork} />`)}</div>`;
}

function merge(items, spawned) {
  const rest = [...spawned].sort((a, b) => b.bornAt - a.bornAt), all = [];
  for (const item of [...items, null]) {
    while (rest.length && (!item || rest.at(-1).bornAt < Date.parse(item.at))) {
      const row = rest.pop();
      all.push({kind: "child", key: row.id, row, at: row.born});
    }
    if (item) all.push(item);
  }
  return all;
}
