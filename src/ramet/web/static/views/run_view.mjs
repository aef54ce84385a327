// One run: who it is, what it used, and its transcript, events, rights, files and state, as of now or of any event.
import {button, count, dateAndTime, duration, elapsed, Folded, grouped, html, list, money, nameOf, none, percent,
  plural, runAddress, runLink, shownPath, silentFor, soft, trouble, useDraw, useEffect, useLoaded, useMemo, useNow, useRows, useState, words} from "./words.mjs";
import {runPath} from "../data/api.mjs";
import {shaped} from "../data/rows.mjs";
import {EventWindow, readRun} from "../data/run_events.mjs";
import {transcriptOf} from "../data/transcript.mjs";
import {limitsOf} from "../tree/limits.mjs";
import {Acts} from "./acts.mjs";
import {says} from "./dialogs.mjs";
import {Flame} from "./flame.mjs";
import {Changes} from "./records.mjs";
import {EventList, Files, Rights, RunState} from "./run_parts.mjs";
import {TranscriptView} from "./transcript_view.mjs";
import {Bar, sandboxWords, State} from "./tree_row.mjs";

const TABS = [["", "Transcript"], ["events", "Events"], ["rights", "Sandbox and rights"], ["files", "Files"], ["diff", "Changes"], ["state", "State"], ["flame", "Flame"]];
const PARTS = new Map([["events", EventList], ["rights", Rights], ["files", Files], ["diff", Changes], ["state", RunState], ["flame", Flame]]);

/** Return the events of a run as they come (with `before`, those with smaller numbers), and the state of reading them. */
function useEvents({api}, id, before) {
  const onChange = useDraw(), [state, onState] = useState({kind: "reading"});
  const held = useMemo(() => new EventWindow(), [api, id, before]);
  useEffect(() => {
    const end = new AbortController();
    readRun(api, runPath(id, "/events"), held, {signal: end.signal, before, onState, onChange});
    return () => end.abort();
  }, [held]);
  return {held, state};
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
  const size = events.length, place = at ?? size, event = events[place - 1], which = `event ${place} of ${size}`;
  return size > 1 && html`<div class="slider"><label>Replay <input type="range" min="1" max=${size} value=${place} aria-valuetext=${`${which}: ${event?.type}`}
      onInput=${({target: {value}}) => setAt(value < size ? Number(value) : null)} /></label>
    ${soft(at ? `as of ${which}, ${dateAndTime(event?.at)}` : `all ${plural(size, "event")}`)} ${at && button("Now", () => setAt(null), "quiet")}</div>`;
}

export function RunView({page, id, tab}) {
  useRows(page.rows);
  const now = useNow(), node = page.rows.nodes.get(id), known = node?.row;
  // Runs of ended trees are not in the feed: they are asked for.
  const loaded = useLoaded((signal) => page.api.get(runPath(id), {signal}), [id, known?.is_over]);
  const [before, setBefore] = useState(0), {held, state} = useEvents(page, id, before), {events, dropped} = held;
  const [place, setPlace] = useState(null); // Of an event among all of them, from the first one that was read.
  const at = place && Math.max(1, place - dropped), setAt = (index) => setPlace(index && index + dropped);
  const shown = at ? events.slice(0, at) : events;
  const replayed = useMemo(() => at && transcriptOf(shown), [held, at]);
  const show = (first) => (setPlace(null), setBefore(first));
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
    <nav class="tabs" aria-label="Parts of the run">${TABS.map(([name, label]) => html`<a href=${runAddress(id, name)} aria-current=${tab === name ? "page" : null}>${label}</a>`)}</nav>
    ${state.kind === "broken" && trouble(state.error)}
    ${(dropped > 0 || before > 0) && none(html`${plural(events.length, "event")} shown, ${dropped ? `${grouped(dropped)} earlier ones not` : "from the first one"}.
      ${dropped > 0 && button("Show earlier ones", () => show(events.find(({seq}) => seq > 0)?.seq ?? 0), "quiet")} ${before > 0 && button("Show the newest", () => show(0), "quiet")}`)}
    ${["", "events", "rights"].includes(tab) && slider(events, at, setAt)}
    <${PARTS.get(tab) ?? TranscriptView} page=${page} id=${id} row=${row} events=${shown} transcript=${replayed ?? held.transcript} result=${loaded.value?.result}
      at=${at ? events[at - 1]?.seq : 0} spawned=${at ? [] : children} onFork=${fork} />
  </div>`;
}
