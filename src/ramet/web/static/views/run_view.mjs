// One run: who it is, what it used, and its transcript, events, rights, files and state, as of now or of any event.
import {html, useEffect, useMemo, useReducer, useRef, useState} from "../html.mjs";
import {runPath} from "../data/api.mjs";
import {count, dateAndTime, duration, money, percent, plural} from "../data/format.mjs";
import {shaped} from "../data/rows.mjs";
import {readRun} from "../data/run_events.mjs";
import {transcriptOf} from "../data/transcript.mjs";
import {limitsOf} from "../tree/limits.mjs";
import {elapsed, nameOf, shownPath, silentFor} from "../tree/state.mjs";
import {Acts} from "./acts.mjs";
import {says} from "./dialogs.mjs";
import {Flame} from "./flame.mjs";
import {useLoaded, useNow, useRows} from "./hooks.mjs";
import {Changes} from "./records.mjs";
import {EventList, Files, Rights, RunState} from "./run_parts.mjs";
import {TranscriptView} from "./transcript_view.mjs";
import {Bar, sandboxWords, State} from "./tree_row.mjs";
import {button, Folded, list, none, runAddress, runLink, soft, trouble, words} from "./words.mjs";

const TABS = [["", "Transcript"], ["events", "Events"], ["rights", "Sandbox and rights"], ["files", "Files"], ["diff", "Changes"], ["state", "State"], ["flame", "Flame"]];

/** Return the events of a run as they come, how many they are, and the state of reading them. */
function useEvents(page, id) {
  const events = useRef([]), [, draw] = useReducer((value) => value + 1, 0), [state, onState] = useState({kind: "reading"});
  useEffect(() => {
    const end = new AbortController();
    events.current = [];
    const onEvents = (more) => {
      for (const each of more) events.current.push(each);
      draw();
    };
    readRun(page.api, runPath(id, "/events"), {signal: end.signal, onState, onEvents});
    return () => end.abort();
  }, [page.api, id]);
  return {events: events.current, size: events.current.length, state};
}

function facts(row, now) {
  const {own, subtree, context_tokens: context, context_window: room} = row, silent = silentFor(row, now);
  const all = [
    ["State", html`<${State} row=${row} />`], ["Agent", row.agent && words(row.agent)], ["Model", row.model && words(row.model)],
    ["Elapsed", duration(elapsed(row, now))], ["Silent for", silent >= 1000 && duration(silent)],
    ["Tokens", `${count(own.tokens)} own, ${count(subtree.tokens)} subtree`], ["USD", `${money(own.usd)} own, ${money(subtree.usd)} subtree`],
    ["Calls", `${own.calls} model, ${own.tools} tool`], ["Context", room ? `${count(context)} of ${count(room)} (${percent(context / room)})` : context && count(context)],
    ["Sandbox", sandboxWords(row) && words(sandboxWords(row), 100)], ["Waits until", dateAndTime(row.waits_until)],
    ["Agents of its program", row.reported_agents?.length && words(row.reported_agents.map((each) => `${each.title || each.id} (${each.state})`).join(", "), 400)],
    ["Begun", dateAndTime(row.born)], ["Ended", row.is_over && dateAndTime(row.ended)],
    ...limitsOf(row).map((each) => ["Limit", html`<${Bar} limit=${each} all=${each.words} /> ${each.words}`]),
  ];
  return html`<dl class="facts">${all.filter(([, value]) => value).map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

/** The act that begins a new tree with the messages of a run up to the event `at`. */
const forkAct = (at) => ({
  title: `Fork from event ${at}`, button: "Fork", path: "fork", body: ({prompt}) => ({at, prompt}),
  about: says("A new tree begins with the messages up to here. This run is not changed."),
  fields: [{name: "prompt", label: "Prompt of the new run", type: "textarea", required: true}],
  receipt: ({run}) => html`The new run is ${runLink(run, run)}.`,
});

function slider(events, at, setAt) {
  const size = events.length, place = at ?? size, event = events[place - 1];
  return size > 1 && html`<div class="slider"><label>Replay <input type="range" min="1" max=${size} value=${place} aria-valuetext=${`event ${place} of ${size}: ${event?.type}`}
      onInput=${({target}) => setAt(Number(target.value) === size ? null : Number(target.value))} /></label>
    ${soft(at === null ? `all ${plural(size, "event")}` : `as of event ${at} of ${size}, ${dateAndTime(event?.at)}`)} ${at !== null && button("Now", () => setAt(null), "quiet")}</div>`;
}

export function RunView({page, id, tab}) {
  useRows(page.rows);
  const now = useNow(), node = page.rows.nodes.get(id), known = node?.row;
  // Runs of ended trees are not in the feed: they are asked for.
  const loaded = useLoaded((signal) => page.api.get(runPath(id), {signal}), [id, known?.is_over]);
  const {events, size, state} = useEvents(page, id);
  const [at, setAt] = useState(null);
  const shown = at === null ? events : events.slice(0, at);
  const transcript = useMemo(() => transcriptOf(shown), [events, size, at]);
  const row = known ?? (loaded.value && shaped(loaded.value));
  if (!row) return html`<div class="page">${trouble(loaded.error, loaded.reload) ?? none("Reading the run…")}</div>`;

  const children = (node?.children ?? []).map((each) => each.row);
  const fork = page.about.read_only ? null : ({seq}) => page.act(forkAct(seq), row);
  return html`<div class="page run">
    <nav class="trail" aria-label="Runs above"><a href="#/">Trees</a>${page.rows.line(id).slice(0, -1).map((each) => html` / ${runLink(each.id, nameOf(each), 80)}`)}</nav>
    <div class="title"><h1>${words(shownPath(row), 300)}</h1><${Acts} page=${page} row=${row} withKeep /></div>
    ${row.description && none(words(row.description, 300))}${facts(row, now)}
    ${children.length > 0 && html`<${Folded} kind="children" summary=${`${children.length === 1 ? "1 child" : `${children.length} children`}${node.live ? `, ${plural(node.live, "run")} below not ended` : ""}`}
      draw=${() => list(children, (each) => html`${runLink(each.id, nameOf(each))} <${State} row=${each} />`)} />`}
    <nav class="tabs" aria-label="Parts of the run">${TABS.map(([name, label]) => html`<a href=${runAddress(id, name)} aria-current=${tab === name ? "page" : undefined}>${label}</a>`)}</nav>
    ${state.kind === "broken" && trouble(state.error)}${state.kind === "cut" && html`<p class="trouble">Only the first ${plural(state.most, "event")} of this run are shown.</p>`}
    ${["", "events", "rights"].includes(tab) && slider(events, at, setAt)}
    ${tab === "events" ? html`<${EventList} events=${shown} />`
      : tab === "rights" ? html`<${Rights} transcript=${transcript} row=${row} />`
      : tab === "files" ? html`<${Files} page=${page} row=${row} result=${loaded.value?.result} />`
      : tab === "diff" ? html`<${Changes} page=${page} id=${id} />`
      : tab === "state" ? html`<${RunState} page=${page} id=${id} at=${at === null ? 0 : events[at - 1]?.seq} />`
      : tab === "flame" ? html`<${Flame} page=${page} id=${id} />`
      : html`<${TranscriptView} transcript=${transcript} spawned=${at === null ? children : []} onFork=${fork} />`}
  </div>`;
}
