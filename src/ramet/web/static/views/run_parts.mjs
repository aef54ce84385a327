// Parts of one run beside its transcript: events, sandbox and rights, files, state.
import {button, choice, clock, code, dateAndTime, Folded, grouped, html, list, none, plural, soft, spaced, table,
  trouble, typed, useGet, useMemo, useState, words} from "./words.mjs";
import {runPath} from "../data/api.mjs";
import {describe} from "../data/transcript.mjs";
import {sandboxWords} from "./tree_row.mjs";

const time = (text) => html`<span class="time">${text}</span>`;

/** The events, the newest first, with a filter by type and words. */
export function EventList({events}) {
  const [type, setType] = useState(""), [sought, setSought] = useState(""), [most, setMost] = useState(200);
  const types = useMemo(() => [...new Set(events.map((each) => each.type))].sort(), [events, events.length]);
  const wanted = sought.toLowerCase();
  const fits = (each) => (!type || each.type === type) && (!wanted || `${each.type} ${describe(each)} ${each.call_id ?? ""}`.toLowerCase().includes(wanted));
  const found = type || wanted ? events.filter(fits) : events;
  return html`<div class="events"><div class="toolbar">
      <input type="search" aria-label="Filter events" placeholder="Filter" value=${sought} onInput=${typed(setSought)} />
      ${choice("Type of event", type, [["", "all types"], ...types.map((each) => [each, spaced(each)])], setType)} ${soft(plural(found.length, "event"))}</div>
    ${found.slice(-most).reverse().map((each) => html`<${Folded} key=${each.seq || each} kind="event" draw=${() => code(each)}
      summary=${html`${time(clock(each.at))} <span class="number">${each.seq || ""}</span> <b>${spaced(each.type)}</b> ${words(describe(each), 160)}`} />`)}
    ${found.length > most && button(`Show earlier events (${grouped(found.length - most)} hidden)`, () => setMost(most + 1000), "quiet")}</div>`;
}

export function Rights({transcript: {rights, endpoints, sandbox}, row}) {
  return html`<section>
    <h2>Sandbox</h2>${sandbox || row.sandbox ? html`<p>${sandboxWords(row) || `${sandbox.backend} ${sandbox.level}`}</p>` : none("This run has no sandbox: it is part of the host, or shares that of the run above.")}
    ${sandbox?.policy && html`<${Folded} summary="Granted policy" draw=${() => code(sandbox.policy)} />`}
    <h2>Clamps, refusals and hooks</h2>${list(rights.slice(-500), (each) => html`${time(clock(each.at))} ${words(describe(each), 400)}`, "None is recorded.")}
    <h2>Endpoints asked</h2>${endpoints.size ? table(["Endpoint", "Allowed", "Denied", "Reason"], [...endpoints].slice(0, 500).map(([name, {allowed, denied, reason}]) =>
      [words(name), allowed, html`<span class=${denied ? "high" : ""}>${denied}</span>`, words(reason)])) : none("None was asked.")}
  </section>`;
}

export function Files({page, row, result}) {
  const [path, setPath] = useState(""), [{shown, error}, set] = useState({});
  const read = (event) => {
    event.preventDefault();
    page.api.request("GET", runPath(row.id, `/file?path=${encodeURIComponent(path)}`)).then((answer) => answer.text())
      .then((text) => set({shown: {path, text}}), (error) => set({error}));
  };
  const later = (text) => (row.is_over ? text : "They are known once the run has ended.");
  return html`<section>
    <h2>Artifacts</h2>${list(result?.artifacts ?? [], (each) => words(each, 400), later("The run left none."))}
    <h2>Files left in its working directory</h2>${list(result?.files ?? [], (each) => html`${words(each.name, 300)} ${soft(plural(each.size, "byte"))}`, later("None."))}
    ${!row.is_over && html`<h2>Read a file of its workspace</h2><form class="toolbar" onSubmit=${read}><input aria-label="Path in the workspace" placeholder="out/report.md" dir="auto" required value=${path} onInput=${typed(setPath)} /><button type="submit">Read</button></form>`}
    ${trouble(error)}${shown && html`<h2>${words(shown.path)}</h2>${code(shown.text)}`}
    ${[["stdout", "Printed"], ["stderr", "Printed to stderr"]].map(([name, title]) => result?.[name] && html`<h2>${title}</h2>${code(result[name])}`)}
  </section>`;
}

export function RunState({page, id, at}) {
  const {value, error} = useGet(page, runPath(id, `/state${at ? `?at=${at}` : ""}`));
  const versions = useGet(page, runPath(id, "/state/versions")).value?.versions;
  return html`<section><h2>Values</h2>${trouble(error)}${value && (Object.keys(value.values).length ? code(value.values) : none("The state of this run is empty."))}
    <h2>Versions</h2>${versions && list(versions, (each) => html`${time(dateAndTime(each.at))} <code>${each.id.slice(0, 12)}</code> ${words(each.message)}`, "There are none.")}</section>`;
}
