// Words of agents on the page: isolated from the direction of the text around them, and long ones cut.
import {html, useState} from "../html.mjs";
import {asText, beginning, brief} from "../data/text.mjs";
import {plural} from "../data/format.mjs";

const FIRST = 4_000, MORE = 100_000;

/** A short text in one line. */
export const Words = ({text, most = 200, tag = "bdi"}) =>
  html`<${tag} class="words" dir="auto">${brief(text, most)}<//>`;

/** A text of any length: its beginning, and a button for more of it. */
export function LongWords({text, first = FIRST, isCode = false}) {
  const [most, setMost] = useState(first);
  const {shown, length, isCut} = beginning(asText(text), most);
  return html`<div class="long">
    <pre class=${isCode ? "words code" : "words prose"} dir="auto" tabindex=${isCode ? 0 : undefined}>${shown}</pre>
    ${isCut && html`<button type="button" class="quiet" onClick=${() => setMost(most + MORE)}>
      Show more (${plural(most, "character")} of ${length.toLocaleString("en")})</button>`}
  </div>`;
}

/** An error, with a button that tries again. */
export const Trouble = ({error, retry}) => error && html`<p class="trouble" role="alert">
  <${Words} text=${error.detail || String(error)} most=${1000} />
  ${retry && html` <button type="button" class="quiet" onClick=${retry}>Try again</button>`}</p>`;

export const runAddress = (id, tab = "") => `#/run/${encodeURIComponent(id)}${tab && `/${tab}`}`;

/** A link to a run, with words of an agent as its text. */
export const RunLink = ({id, text, most = 300}) => html`<a href=${runAddress(id)}><${Words} text=${text} most=${most} /></a>`;
