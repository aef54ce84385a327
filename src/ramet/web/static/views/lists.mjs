// Lists of a kernel: teams with their capacity and the agents in them (never keys), schedules, and what passed safety gates.
import {asText, button, choice, clock, code, count, dateAndTime, Folded, html, list, money, none, runLink, soft,
  spaced, table, trouble, useGet, useState, words} from "./words.mjs";
import {says} from "./dialogs.mjs";
import {Bar} from "./tree_row.mjs";

const AGAIN_MS = 5_000;

/** An act without fields on something that is no run. */
const actOn = (page, url, title, about, receipt, button = title) => () => page.act({title, button, url, about: says(about), receipt}, null);

/** A list of the API: its error, a sentence when it is empty, and `draw` of it. */
export function Loaded({page, title, name, path = `/v1/${name}`, empty = `There are no ${name}.`, draw}) {
  const {value, error, reload} = useGet(page, path, AGAIN_MS);
  return html`<h1>${title}</h1>${trouble(error, reload)}${value && (value[name].length ? draw(value[name].slice(0, 1000)) : none(empty))}`;
}

function resource(name, {resources, held: holds, spent: spends, free}) {
  const all = resources[name] || 0, held = holds[name] || 0, spent = spends[name] || 0, write = name === "usd" ? money : count;
  const usedPart = all ? Math.min(1, spent / all) : 1, said = `${spaced(name)}: ${write(spent)} spent, ${write(held)} held, ${write(free[name] ?? 0)} free of ${write(all)}`;
  return html`<div><${Bar} limit=${{usedPart, reservedPart: all ? Math.min(1 - usedPart, held / all) : 0}} all=${said} /> ${said}</div>`;
}

export function AgentLists({page}) {
  const interrupt = ({id, path}) => actOn(page, `/v1/agents/${encodeURIComponent(id)}/interrupt`, `Interrupt ${path}`,
    "This ends the turn that the agent works on. The agent stays, and answers the next turn.",
    ({interrupted}) => (interrupted ? "The turn has ended." : "No turn was running."), "Interrupt");
  return html`<div class="page">
    <${Loaded} page=${page} name="teams" title="Teams" draw=${(teams) => teams.map((each) => html`<section class="card" key=${each.id}>
      <h2>${words(each.name || each.id)}</h2>${none(`${each.agents} agents, since ${dateAndTime(each.created_at)}${each.bounded.length ? `; bounded by the machine: ${each.bounded.join(", ")}` : ""}`)}
      ${Object.keys(each.resources).map((name) => resource(name, each))}</section>`)} />
    <${Loaded} page=${page} name="agents" title="Agents" draw=${(agents) => table(["Path", "Type", "State", "Turns", "Isolation", "Team", ""],
      agents.map((each) => [each.run ? runLink(each.run, each.path) : words(each.path), words(each.agent_type), html`${each.state} ${each.error && words(each.error.message)}`, each.turns, each.isolation,
        words(each.team), !page.about.read_only && each.state === "working" && button("Interrupt", interrupt(each))]))} /></div>`;
}

const schedulePath = (id, rest) => `/v1/schedules/${encodeURIComponent(id)}/${rest}`;

function Ticks({page, id}) {
  const {value, error} = useGet(page, schedulePath(id, "results"), AGAIN_MS);
  return html`${trouble(error)}${list([...(value?.results ?? [])].reverse(), (each) => html`<span class="time">${dateAndTime(each.tick)}</span> ${spaced(each.status)}
    ${each.run && runLink(each.run, "run")} ${each.error && words(each.error.message)} ${each.text && words(each.text)}`)}`;
}

function schedule(page, {id, name, paused, next, running, waiting, skipped, last, schedule: definition}) {
  const act = (verb, title, about, receipt) => button(title, actOn(page, schedulePath(id, verb), `${title} ${id}`, about, says(receipt), title));
  return html`<section class="card" key=${id}><div class="ask-head"><h2>${words(name || id)}</h2>
      ${soft(`${paused ? "paused" : next ? `next ${dateAndTime(next)}` : "no further tick"}; ${running} running, ${waiting} waiting, ${skipped} skipped`)}</div>
    ${last && html`<p>Last tick: ${spaced(last.status)} ${soft(dateAndTime(last.ended))}</p>`}
    ${!page.about.read_only && html`<span class="acts">${act("trigger", "Trigger", "A run of this schedule begins now.", "The run was requested.")}
      ${paused ? act("resume", "Resume", "Its ticks are due again.", "The schedule is active.")
        : act("pause", "Pause", "No tick is due until it is resumed. Runs that are active go on.", "The schedule is paused.")}</span>`}
    <${Folded} summary="Ticks and definition" draw=${() => html`<${Ticks} page=${page} id=${id} />${code(definition)}`} /></section>`;
}

export const Schedules = ({page}) => html`<div class="page"><${Loaded} page=${page} path="/v1/schedules?limit=1000" name="schedules" title="Schedules"
  draw=${(all) => all.map((each) => schedule(page, each))} /></div>`;

const KINDS = [["decision", "decisions"], ["intention", "intentions"], ["output", "outputs"]];

export function Passages({page}) {
  const [kind, setKind] = useState("decision"), [after, setAfter] = useState(0);
  const {value, error, reload} = useGet(page, `/v1/safety/passages?limit=200&kinds=${kind}&after=${after}`, AGAIN_MS);
  return html`<div class="page"><h1>Safety passages</h1>
    <div class="toolbar">${choice("Show", kind, KINDS, (each) => (setAfter(0), setKind(each)))}
      ${value?.more && button("Later ones", () => setAfter(value.cursor))}${after > 0 && button("From the beginning", () => setAfter(0))}</div>
    ${trouble(error, reload)}
    ${value && list(value.entries, ({event}) => html`<span class="time">${clock(event.at)}</span> ${runLink(event.run, event.path)} <b>${words(event.tool, 60)}</b>
      ${event.committed === false ? html`<span class="high">aborted</span>` : event.committed ? "committed" : ""} ${words(event.reason ?? asText(event.args ?? event.preview ?? ""), 240)}`,
    "No call has come to a safety gate.")}</div>`;
}
