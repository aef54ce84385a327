// The events of a run, the newest first, with a filter by type and words.
import {html, useMemo, useState} from "../html.mjs";
import {clock, plural} from "../data/format.mjs";
import {asText} from "../data/text.mjs";
import {describe} from "../data/transcript.mjs";
import {LongWords, Words} from "./words.mjs";

const FIRST = 200;

function Event({event}) {
  const [isOpen, setOpen] = useState(false);
  return html`<details class="event" onToggle=${(toggle) => setOpen(toggle.currentTarget.open)}>
    <summary><span class="time">${clock(event.at)}</span> <span class="number">${event.seq || ""}</span> <b>${String(event.type).replaceAll("_", " ")}</b> <${Words} text=${describe(event)} most=${160} /></summary>
    ${isOpen && html`<${LongWords} text=${asText(event)} isCode />`}</details>`;
}

export function EventList({events}) {
  const [type, setType] = useState(""), [words, setWords] = useState(""), [most, setMost] = useState(FIRST);
  const types = useMemo(() => [...new Set(events.map((each) => each.type))].sort(), [events, events.length]);
  const wanted = words.toLowerCase();
  const fits = (each) => (!type || each.type === type) && (!wanted || `${each.type} ${describe(each)} ${each.call_id ?? ""}`.toLowerCase().includes(wanted));
  const found = type || wanted ? events.filter(fits) : events;
  return html`<div class="events"><div class="toolbar">
      <input type="search" aria-label="Filter events" placeholder="Filter" value=${words} onInput=${(event) => setWords(event.target.value)} />
      <select aria-label="Type of event" value=${type} onChange=${(event) => setType(event.target.value)}>
        <option value="">all types</option>${types.map((each) => html`<option value=${each}>${each.replaceAll("_", " ")}</option>`)}</select>
      <span class="soft">${plural(found.length, "event")}</span></div>
    ${found.slice(-most).reverse().map((each) => html`<${Event} key=${each.seq || each} event=${each} />`)}
    ${found.length > most && html`<button type="button" class="quiet" onClick=${() => setMost(most + 1000)}>Show earlier events (${found.length - most} hidden)</button>`}
  </div>`;
}
