// One run: who it is, what it used, and its transcript, events, rights, files and state, as of now or of any event.
import {html, useEffect, useMemo, useReducer, useRef, useState} from "../html.mjs";
import {runPath} from "../data/api.mjs";
import {count, dateAndTime, duration, money, percent, plural} from "../data/format.mjs";
import {shaped} from "../data/rows.mjs";
import {readRun} from "../data/run_events.mjs";
import {brief} from "../data/text.mjs";
import {transcriptOf} from "../data/transcript.mjs";
import {limitsOf} from "../tree/limits.mjs";
import {elapsed, nameOf, shownPath, silentFor} from "../tree/state.mjs";
import {Acts} from "./acts.mjs";
import {EventList} from "./event_list.mjs";
import {Flame} from "./flame.mjs";
import {useLoaded, useNow, useRows} from "./hooks.mjs";
import {Files, Rights, RunState} from "./run_parts.mjs";
import {TranscriptView} from "./transcript_view.mjs";
import {Bar, sandboxWords, State} from "./tree_row.mjs";
import {runAddress, RunLink, Trouble, Words} from "./words.mjs";

const TABS = [["", "Transcript"], ["events", "Events"], ["rights", "Sandbox and rights"], ["files", "Files"], ["state", "State"], ["flame", "Flame"]];

function useEvents(page, id) {
  const events = useRef([]);
  const [, draw] = useReducer((value) => value + 1, 0);
  const [state, setState] = useState({kind: "reading"});
  useEffect(() => {
    const end = new AbortController();
    events.current = [];
    readRun(page.api, runPath(id, "/events"), {
      signal: end.signal, onState: setState,
      onEvents: (list) => {
        for (const each of list) events.current.push(each);
        draw();
      },
    });
    return () => end.abort();
  }, [page.api, id]);
  return {events: events.current, size: events.current.length, state};
}

function Facts({row, now}) {
  const facts = [
    ["State", html`<${State} row=${row} />`], ["Agent", html`<${Words} text=${row.agent} />`], ["Model", html`<${Words} text=${row.model} />`],
    ["Elapsed", duration(elapsed(row, now))], ["Silent for", silentFor(row, now) >= 1000 ? duration(silentFor(row, now)) : ""],
    ["Tokens", `${count(row.own.tokens)} own, ${count(row.subtree.tokens)} subtree`], ["USD", `${money(row.own.usd)} own, ${money(row.subtree.usd)} subtree`],
    ["Calls", `${row.own.calls} model, ${row.own.tools} tool`],
    ["Context", row.context_window ? `${count(row.context_tokens)} of ${count(row.context_window)} (${percent(row.context_tokens / row.context_window)})` : row.context_tokens ? count(row.context_tokens) : ""],
    ["Sandbox", brief(sandboxWords(row), 100)], ["Waits until", row.waits_until ? dateAndTime(row.waits_until) : ""],
    ["Agents of its program", row.reported_agents?.length ? html`<${Words} text=${row.reported_agents.map((each) => `${each.title || each.id} (${each.state})`).join(", ")} most=${400} />` : ""],
    ["Begun", dateAndTime(row.born)], ["Ended", row.is_over ? dateAndTime(row.ended) : ""],
  ];
  return html`<dl class="facts">${facts.filter(([, value]) => value).map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}
    ${limitsOf(row).map((each) => html`<div><dt>Limit</dt><dd><${Bar} limit=${each} all=${each.words} /> ${each.words}</dd></div>`)}</dl>`;
}

/** The form of an act that begins a new tree with the messages of `row` up to the event `seq`. */
const forkAct = (row, seq) => ({
  title: `Fork from event ${seq}`, button: "Fork", path: "/fork", body: ({prompt}) => ({at: seq, prompt}),
  about: () => html`<p>A new tree begins with the messages up to here. This run is not changed.</p>`,
  fields: [{name: "prompt", label: "Prompt of the new run", type: "textarea", isRequired: true}],
  receipt: (answer) => html`<p>The new run is <${RunLink} id=${answer.id ?? answer.run} text=${answer.id ?? answer.run} />.</p>`,
});

function Slider({events, at, setAt}) {
  const size = events.length, event = events[(at ?? size) - 1];
  if (size < 2) return null;
  return html`<div class="slider"><label>Replay <input type="range" min="1" max=${size} value=${at ?? size}
      aria-valuetext=${event ? `event ${at ?? size} of ${size}: ${event.type}` : ""}
      onInput=${(input) => setAt(Number(input.target.value) === size ? null : Number(input.target.value))} /></label>
    <span class="soft">${at === null ? `all ${plural(size, "event")}` : `as of event ${at} of ${size}, ${dateAndTime(event?.at)}`}</span>
    ${at !== null && html`<button type="button" class="quiet" onClick=${() => setAt(null)}>Now</button>`}</div>`;
}

export function RunView({page, id, tab}) {
  useRows(page.rows);
  const now = useNow();
  const known = page.rows.get(id);
  // Runs of ended trees are not in the feed: they are asked for.
  const loaded = useLoaded((signal) => page.api.get(runPath(id), {signal}), [id, known?.is_over]);
  const {events, size, state} = useEvents(page, id);
  const [at, setAt] = useState(null);
  const transcript = useMemo(() => transcriptOf(at === null ? events : events.slice(0, at)), [events, size, at]);
  const row = known ?? (loaded.value && shaped(loaded.value));
  if (!row) return html`<div class="page">${loaded.error ? html`<${Trouble} error=${loaded.error} retry=${loaded.reload} />` : html`<p class="soft">Reading the run…</p>`}</div>`;

  const node = page.rows.nodes.get(id);
  const children = (node?.children ?? []).map((each) => each.row);
  const above = page.rows.line(id).slice(0, -1);
  const fork = page.about.read_only ? null : (item) => page.act(forkAct(row, item.seq), row);
  const shown = at === null ? events : events.slice(0, at);
  return html`<div class="page run">
    <nav class="trail" aria-label="Runs above"><a href="#/">Trees</a>${above.map((each) => html` / <${RunLink} id=${each.id} text=${nameOf(each)} most=${80} />`)}</nav>
    <div class="title"><h1><${Words} text=${shownPath(row)} most=${300} /></h1><${Acts} page=${page} row=${row} withKeep /></div>
    ${row.description && html`<p class="soft"><${Words} text=${row.description} most=${300} /></p>`}
    <${Facts} row=${row} now=${now} />
    ${children.length > 0 && html`<details class="children"><summary>${plural(children.length, "child")}${node.live ? `, ${plural(node.live, "run")} below not ended` : ""}</summary>
      <ul class="paths">${children.slice(0, 500).map((each) => html`<li><${RunLink} id=${each.id} text=${nameOf(each)} /> <${State} row=${each} /></li>`)}</ul></details>`}
    <nav class="tabs" aria-label="Parts of the run">${TABS.map(([name, label]) => html`<a href=${runAddress(id, name)} aria-current=${tab === name ? "page" : undefined}>${label}</a>`)}</nav>
    ${state.kind === "broken" && html`<${Trouble} error=${state.error} />`}
    ${state.kind === "cut" && html`<p class="trouble">Only the first ${plural(state.most, "event")} of this run are shown.</p>`}
    ${(tab === "" || tab === "events" || tab === "rights") && html`<${Slider} events=${events} at=${at} setAt=${setAt} />`}
    ${tab === "events" ? html`<${EventList} events=${shown} />`
      : tab === "rights" ? html`<${Rights} transcript=${transcript} row=${row} />`
      : tab === "files" ? html`<${Files} page=${page} row=${row} result=${loaded.value?.result} />`
      : tab === "state" ? html`<${RunState} page=${page} id=${id} at=${at === null ? 0 : events[at - 1]?.seq} />`
      : tab === "flame" ? html`<${Flame} page=${page} id=${id} />`
      : html`<${TranscriptView} transcript=${transcript} spawned=${at === null ? children : []} onFork=${fork} />`}
  </div>`;
}
