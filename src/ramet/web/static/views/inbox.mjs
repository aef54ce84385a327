// The inbox: every question of a run to a person and every run that waits at a limit, of all trees, the oldest first.
import {html, useState} from "../html.mjs";
import {count, dateAndTime, duration, money} from "../data/format.mjs";
import {useLoaded, useNow, useRows} from "./hooks.mjs";
import {waitingCount} from "../tree/state.mjs";
import {LongWords, RunLink, Trouble, Words} from "./words.mjs";

const AGAIN_MS = 5_000;
// Names of arguments in which tools that write get the old and the new text.
const OLD = ["old_string", "old_text", "old"], NEW = ["new_string", "new_text", "new", "content"];
const MOST = 100; //: arguments that are shown one by one
const first = (args, names) => names.find((each) => Object.hasOwn(args, each) && typeof args[each] === "string");

/** All arguments, each with its name: no argument, which the model chose, can fold or push away another one. */
function Arguments({args}) {
  const after = first(args, NEW), before = after && first(args, OLD);
  const names = Object.keys(args).filter((each) => each !== after && each !== before);
  return html`${names.length > 0 && html`<h3>Arguments</h3><dl class="arguments">${names.slice(0, MOST).map((each) => html`<dt><${Words} text=${each} most=${100} /></dt>
      <dd><${LongWords} text=${args[each]} first=${2000} isCode /></dd>`)}</dl>`}
    ${names.length > MOST && html`<p class="high">and ${names.length - MOST} more arguments: all of them</p><${LongWords} text=${args} first=${2000} isCode />`}
    ${after && html`<h3>What it writes (<${Words} text=${after} />)</h3><div class="diff">
      ${before && html`<del><${LongWords} text=${args[before]} first=${2000} isCode /></del>`}
      <ins><${LongWords} text=${args[after]} first=${2000} isCode /></ins></div>`}`;
}

function Limit({limit}) {
  return html`<p>At the limit of <${RunLink} id=${limit.scope_run} text=${limit.scope} />:
    ${` ${limit.resource.replaceAll("_", " ")}`}, ${count(limit.asked)} asked, ${count(limit.left)} left. To allow it adds <b>${limit.amount}</b>.</p>`;
}

function Ask({page, ask, onAnswer}) {
  const now = useNow(), [reason, setReason] = useState(""), [error, setError] = useState(null), [isSending, setSending] = useState(false);
  const answer = async (allowed) => {
    setSending(true);
    try {
      await page.api.post(`/v1/approvals/${encodeURIComponent(ask.id)}`, {allowed, reason});
      onAnswer(ask, allowed, reason);
    } catch (problem) {
      setError(problem);
      setSending(false);
    }
  };
  const usage = ask.usage ?? {};
  return html`<article class="card" aria-label=${ask.kind === "limit" ? "Run at a limit" : "Question"}>
    <div class="ask-head"><h2><${RunLink} id=${ask.run} text=${ask.path} /></h2>
      <span class="soft"><${Words} text=${ask.agent} most=${60} /> · asked ${duration(now - Date.parse(ask.asked_at))} ago
        · ${money(usage.usd ?? 0)} USD and ${count((usage.input_tokens ?? 0) + (usage.output_tokens ?? 0))} tokens so far</span>
      ${ask.deadline && html`<span class="high" title=${dateAndTime(ask.deadline)}>denied in ${duration(Math.max(0, Date.parse(ask.deadline) - now))}</span>`}</div>
    ${ask.tool && html`<p>Tool: <b><${Words} text=${ask.tool} most=${100} /></b></p>`}
    ${ask.question && html`<${LongWords} text=${ask.question} first=${1500} />`}
    ${ask.limit && html`<${Limit} limit=${ask.limit} />`}
    ${ask.args && Object.keys(ask.args).length > 0 && html`<${Arguments} args=${ask.args} />`}
    <${Trouble} error=${error} />
    ${page.about.read_only ? html`<p class="soft">read-only</p>` : html`<form class="toolbar" onSubmit=${(event) => event.preventDefault()}>
      <input aria-label="Reason, which the model reads" placeholder="Reason, which the model reads" dir="auto" value=${reason} onInput=${(event) => setReason(event.target.value)} />
      <button type="button" class="main" disabled=${isSending} onClick=${() => answer(true)}>${ask.limit ? "Allow, and add to the limit" : "Allow"}</button>
      <button type="button" class="danger" disabled=${isSending} onClick=${() => answer(false)}>Deny</button></form>`}
  </article>`;
}

export function Inbox({page}) {
  useRows(page.rows);
  const waiting = waitingCount(page.rows);
  const [answered, setAnswered] = useState([]);
  const asks = useLoaded((signal) => page.api.pages("/v1/approvals", "approvals", {signal, most: 2000}), [page.api, waiting], AGAIN_MS);
  const done = new Set(answered.map((each) => each.id));
  const open = (asks.value?.entries ?? []).filter((each) => !done.has(each.id));
  const onAnswer = (ask, allowed, reason) => {
    setAnswered((all) => [...all, {id: ask.id, path: ask.path, tool: ask.tool, allowed, reason, at: new Date().toISOString()}]);
    asks.reload();
  };
  return html`<div class="page"><h1>Inbox</h1>
    <${Trouble} error=${asks.error} retry=${asks.reload} />
    ${asks.value && !open.length && html`<p class="soft">Nothing waits for a person.</p>`}
    ${open.slice(0, 200).map((each) => html`<${Ask} key=${each.id} page=${page} ask=${each} onAnswer=${onAnswer} />`)}
    ${open.length > 200 && html`<p class="soft">and ${open.length - 200} more; they appear as these are answered.</p>`}
    ${answered.length > 0 && html`<section aria-label="Receipts"><h2>Answered in this tab</h2><ul class="paths" role="status">${answered.map((each) => html`<li key=${each.id}>
      <b>${each.allowed ? "Allowed" : "Denied"}</b> <${Words} text=${each.path} /> <${Words} text=${each.tool} most=${100} /> <span class="soft">${dateAndTime(each.at)}</span> ${each.reason && html`<${Words} text=${each.reason} />`}</li>`)}</ul></section>`}
  </div>`;
}
