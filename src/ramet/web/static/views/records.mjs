// Schedules with their ticks, and what passed the safety gates.
import {html, useState} from "../html.mjs";
import {clock, dateAndTime} from "../data/format.mjs";
import {asText} from "../data/text.mjs";
import {useLoaded} from "./hooks.mjs";
import {LongWords, RunLink, Trouble, Words} from "./words.mjs";

const AGAIN_MS = 5_000;
const path = (id, rest) => `/v1/schedules/${encodeURIComponent(id)}/${rest}`;

const scheduleAct = (schedule, verb, title, about, receipt) => ({
  title: `${title} ${schedule.id}`, button: title, url: path(schedule.id, verb), body: () => undefined, fields: [],
  about: () => html`<p>${about}</p>`, receipt: () => html`<p>${receipt}</p>`,
});

function Ticks({page, id}) {
  const ticks = useLoaded((signal) => page.api.get(path(id, "results"), {signal}), [id], AGAIN_MS);
  return html`<${Trouble} error=${ticks.error} /><ul class="rights">${(ticks.value?.results ?? []).slice().reverse().map((each) => html`<li>
    <span class="time">${dateAndTime(each.tick)}</span> ${String(each.status).replaceAll("_", " ")}
    ${each.run && html` <${RunLink} id=${each.run} text="run" />`} ${each.error && html`<${Words} text=${each.error.message} />`}
    ${each.text && html`<${Words} text=${each.text} />`}</li>`)}</ul>`;
}

function Schedule({page, view}) {
  const [isOpen, setOpen] = useState(false);
  const act = (verb, title, about, receipt) => page.act(scheduleAct(view, verb, title, about, receipt), null);
  return html`<section class="card"><div class="ask-head"><h2><${Words} text=${view.name || view.id} /></h2>
      <span class="soft">${view.paused ? "paused" : view.next ? `next ${dateAndTime(view.next)}` : "no further tick"}; ${view.running} running, ${view.waiting} waiting, ${view.skipped} skipped</span></div>
    ${view.last && html`<p>Last tick: ${String(view.last.status).replaceAll("_", " ")} <span class="soft">${dateAndTime(view.last.ended)}</span></p>`}
    ${!page.about.read_only && html`<span class="acts">
      <button type="button" onClick=${() => act("trigger", "Trigger", "A run of this schedule begins now.", "The run was requested.")}>Trigger</button>
      ${view.paused ? html`<button type="button" onClick=${() => act("resume", "Resume", "Its ticks are due again.", "The schedule is active.")}>Resume</button>`
        : html`<button type="button" onClick=${() => act("pause", "Pause", "No tick is due until it is resumed. Runs that are active go on.", "The schedule is paused.")}>Pause</button>`}</span>`}
    <details onToggle=${(event) => setOpen(event.currentTarget.open)}><summary>Ticks and definition</summary>
      ${isOpen && html`<${Ticks} page=${page} id=${view.id} /><${LongWords} text=${view.schedule} isCode />`}</details></section>`;
}

export function Schedules({page}) {
  const list = useLoaded((signal) => page.api.pages("/v1/schedules", "schedules", {signal, most: 2000}), [page.api], AGAIN_MS);
  return html`<div class="page"><h1>Schedules</h1><${Trouble} error=${list.error} retry=${list.reload} />
    ${list.value && !list.value.entries.length && html`<p class="soft">There are no schedules.</p>`}
    ${(list.value?.entries ?? []).map((each) => html`<${Schedule} key=${each.id} page=${page} view=${each} />`)}</div>`;
}

export function Passages({page}) {
  const [kind, setKind] = useState("decision");
  const [after, setAfter] = useState(0);
  const list = useLoaded((signal) => page.api.get(`/v1/safety/passages?limit=200&kinds=${kind}&after=${after}`, {signal}), [kind, after], AGAIN_MS);
  return html`<div class="page"><h1>Safety passages</h1>
    <div class="toolbar"><label>Show <select value=${kind} onChange=${(event) => (setAfter(0), setKind(event.target.value))}>
      <option value="decision">decisions</option><option value="intention">intentions</option><option value="output">outputs</option></select></label>
      ${list.value?.more && html`<button type="button" onClick=${() => setAfter(list.value.cursor)}>Later ones</button>`}
      ${after > 0 && html`<button type="button" onClick=${() => setAfter(0)}>From the beginning</button>`}</div>
    <${Trouble} error=${list.error} retry=${list.reload} />
    ${list.value && !list.value.entries.length && html`<p class="soft">No call has come to a safety gate.</p>`}
    <ul class="rights">${(list.value?.entries ?? []).map(({cursor, event}) => html`<li key=${cursor}><span class="time">${clock(event.at)}</span>
      <${RunLink} id=${event.run} text=${event.path} /> <b><${Words} text=${event.tool} most=${60} /></b>
      ${event.committed === false ? html` <span class="high">aborted</span>` : event.committed ? " committed" : ""} <${Words} text=${event.reason ?? asText(event.args ?? event.preview ?? "")} most=${240} /></li>`)}</ul></div>`;
}
