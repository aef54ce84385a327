// The pieces with which all views draw. Words of agents are isolated from the direction of the text around them, and cut.
import {html, useState} from "../html.mjs";
import {grouped, plural} from "../data/format.mjs";
import {asText, beginning, brief} from "../data/text.mjs";

// What views draw with, under one name.
export * from "../html.mjs";
export * from "../data/format.mjs";
export * from "../data/text.mjs";
export * from "../tree/state.mjs";
export * from "./hooks.mjs";

const FIRST = 4_000, MORE = 100_000;

/** A short text in one line. */
export const words = (text, most = 200) => html`<bdi class="words" dir="auto">${brief(text, most)}</bdi>`;

export const soft = (content) => html`<span class="soft">${content}</span>`;
/** A sentence about something that is not there. */
export const none = (content) => html`<p class="soft">${content}</p>`;
export const button = (label, onClick, kind) => html`<button type="button" class=${kind} onClick=${onClick}>${label}</button>`;

function Long({text, first, kind}) {
  const [most, setMost] = useState(first);
  const {shown, length, isCut} = beginning(asText(text), most);
  return html`<div class="long"><pre class=${`words ${kind}`} dir="auto" tabindex=${kind === "code" ? 0 : null}>${shown}</pre>
    ${isCut && button(`Show more (${plural(most, "character")} of ${grouped(length)})`, () => setMost(most + MORE), "quiet")}</div>`;
}

/** A text of any length: its beginning, and a button for more of it. */
export const prose = (text, first = FIRST) => html`<${Long} kind="prose" text=${text} first=${first} />`;
export const code = (text, first = FIRST) => html`<${Long} kind="code" text=${text} first=${first} />`;

/** A part whose content is drawn only while it is unfolded. */
export function Folded({summary, draw, isOpen = false, kind}) {
  const [isShown, show] = useState(isOpen);
  return html`<details class=${kind} open=${isOpen} onToggle=${(event) => show(event.currentTarget.open)}><summary>${summary}</summary>${isShown && draw()}</details>`;
}

/** A list with a line for each item, or the sentence `empty` when there is none. */
export const list = (items, draw, empty) =>
  (items.length ? html`<ul class="list">${items.slice(0, 500).map((each) => html`<li>${draw(each)}</li>`)}</ul>` : empty && none(empty));

/** A table; each row is a list of cells. */
export const table = (head, rows) => html`<div class="scroll" tabindex="0"><table class="table"><thead><tr>${head.map((each) => html`<th>${each}</th>`)}</tr></thead>
  <tbody>${rows.map((cells) => html`<tr>${cells.map((each) => html`<td>${each}</td>`)}</tr>`)}</tbody></table></div>`;

/** Return a listener that calls `set` with the value of a field. */
export const typed = (set) => ({target}) => set(target.value);

/** A choice of one of `options`: each is a value, and a label if that is another one. */
export const choice = (label, value, options, onChoose) => html`<select aria-label=${label} value=${value} onChange=${typed(onChoose)}>
  ${options.map(([each, text = each]) => html`<option value=${each}>${text}</option>`)}</select>`;

/** An error, with a button that tries again. */
export const trouble = (error, retry) => error && html`<p class="trouble" role="alert">
  ${words(error.detail || String(error), 1000)} ${retry && button("Try again", retry, "quiet")}</p>`;

export const runAddress = (id, tab = "") => `#/run/${encodeURIComponent(id)}${tab && `/${tab}`}`;

/** A link to a run, with words of an agent as its text. */
export const runLink = (id, text, most = 300) => html`<a href=${runAddress(id)}>${words(text, most)}</a>`;
