// The inbox: every question of a run to a person and every run that waits at a limit, of all trees, the oldest first.
import {code, count, dateAndTime, duration, grouped, html, list, money, none, prose, runLink, soft, spaced, trouble,
  typed, useLoaded, useNow, useRows, useState, waitingCount, words} from "./words.mjs";

const AGAIN_MS = 5_000;
// Names of arguments in which tools that write get the old and the new text.
const OLD = ["old_string", "old_text", "old"], NEW = ["new_string", "new_text", "new", "content"];
const MOST = 100; //: arguments that are shown one by one
const first = (args, names) => names.find((each) => Object.hasOwn(args, each) && typeof args[each] === "string");

/** All arguments, each with its name: no argument, which the model chose, can fold or push away another one. */
function shownArguments(args) {
  const after = first(args, NEW), before = after && first(args, OLD);
  const names = Object.keys(args).filter((each) => each !== after && each !== before);
  return html`${names.length > 0 && html`<h3>Arguments</h3><dl class="arguments">${names.slice(0, MOST).map((each) => html`<dt>${words(each, 100)}</dt><dd>${code(args[each], 2000)}</dd>`)}</dl>`}
    ${names.length > MOST && html`<p class="high">and ${names.length - MOST} more arguments: all of them</p>${code(args, 2000)}`}
    ${after && html`<h3>What it writes (${words(after)})</h3><div class="diff">${before && html`<del>${code(args[before], 2000)}</del>`}<ins>${code(args[after], 2000)}</ins></div>`}`;
}

const limitLine = ({scope_run, scope, resource, asked, left, amount}) => html`<p>At the limit of ${runLink(scope_run, scope)}:
  ${` ${spaced(resource)}`}, ${count(asked)} asked, ${count(left)} left. To allow it adds <b>${amount}</b>.</p>`;

function Ask({page, ask, onAnswer}) {
  const now = useNow(), [reason, setReason] = useState(""), [error, setError] = useState(null), [isSending, setSending] = useState(false);
  const answer = (label, allowed, kind, for_run = false) => html`<button type="button" class=${kind} disabled=${isSending} onClick=${async () => {
    setSending(true);
    try {
      await page.api.post(`/v1/approvals/${encodeURIComponent(ask.id)}`, {allowed, reason, for_run});
      onAnswer({...ask, allowed, reason, isForRun: for_run, at: new Date().toISOString()});
    } catch (problem) {
      setError(problem);
      setSending(false);
    }
  }}>${label}</button>`;
  const {usd = 0, input_tokens = 0, output_tokens = 0} = ask.usage ?? {};
  return html`<article class="card ask" aria-label=${ask.kind === "limit" ? "Run at a limit" : "Question"}>
    <div class="ask-head"><h2>${runLink(ask.run, ask.path)}</h2>
      ${soft(html`${words(ask.agent, 60)} · asked ${duration(now - Date.parse(ask.asked_at))} ago · ${money(usd)} USD and ${count(input_tokens + output_tokens)} tokens so far`)}
      ${ask.deadline && html`<span class="high" title=${dateAndTime(ask.deadline)}>denied in ${duration(Math.max(0, Date.parse(ask.deadline) - now))}</span>`}</div>
    ${ask.tool && html`<p>Tool: <b>${words(ask.tool, 100)}</b></p>`}${ask.question && prose(ask.question, 1500)}${ask.limit && limitLine(ask.limit)}
    ${ask.args && Object.keys(ask.args).length > 0 && shownArguments(ask.args)}${trouble(error)}
    ${page.about.read_only ? none("read-only") : html`<form class="answer" onSubmit=${(event) => event.preventDefault()}>
      <input aria-label="Reason, which the model reads" placeholder="Reason, which the model reads" dir="auto" value=${reason} onInput=${typed(setReason)} />
      ${answer(ask.limit ? "Allow, and add to the limit" : "Allow", true, "main")}${answer("Deny", false, "danger")}
      ${ask.for_run && html`<p class="for-run">${answer("Allow for this run", true, undefined, true)} Also, without another question, later calls of this run only:
        ${` `}<b>${words(ask.for_run, 300)}</b>, if the same is asked about them. Rules that deny, and the safety gate, still count.</p>`}</form>`}
  </article>`;
}

export function Inbox({page}) {
  useRows(page.rows);
  const [answered, setAnswered] = useState([]);
  const {value, error, reload} = useLoaded(
    (signal) => page.api.pages("/v1/approvals", "approvals", {signal, most: 2000}), [page.api, waitingCount(page.rows)], AGAIN_MS,
  );
  const open = (value?.entries ?? []).filter(({id}) => !answered.some((each) => each.id === id));
  const onAnswer = (ask) => (setAnswered((all) => [...all, ask]), reload());
  return html`<div class="page"><h1>Inbox</h1>${trouble(error, reload)}${value && !open.length && none("Nothing waits for a person.")}
    ${open.slice(0, 200).map((each) => html`<${Ask} key=${each.id} page=${page} ask=${each} onAnswer=${onAnswer} />`)}
    ${open.length > 200 && none(`and ${grouped(open.length - 200)} more; they appear as these are answered.`)}
    ${answered.length > 0 && html`<section aria-label="Receipts"><h2>Answered in this tab</h2><div role="status">${list(answered, ({allowed, isForRun, for_run, path, tool, at, reason}) => html`
      <b>${allowed ? "Allowed" : "Denied"}</b>${isForRun && html` for this run (${words(for_run, 300)})`} ${words(path)} ${words(tool)} ${soft(dateAndTime(at))} ${words(reason)}`)}</div></section>`}
  </div>`;
}
