// The list of keys.
import {html} from "../html.mjs";
import {close, Dialog} from "./act_dialog.mjs";

const KEYS = [
  ["↑ ↓ PgUp PgDn Home End", "select a line"], ["→ ←", "show or hide the runs below; go to the run above"],
  ["*", "show all runs below the lines in the table"], ["Enter", "open the run"], ["/", "filter"], ["s", "stop the run and all below it"],
  ["p", "pause, or resume"], ["m", "message"], ["r", "raise limits"], ["Esc", "close a dialog"], ["?", "this list"],
];

export const Help = ({onClose}) => html`<${Dialog} title="Keys" onClose=${onClose}>
  <dl class="keys">${KEYS.map(([key, what]) => html`<dt><kbd>${key}</kbd></dt><dd>${what}</dd>`)}</dl>
  <p>Each act asks first and shows the receipt. A run says “ended” only when its processes are gone.</p>
  <div class="buttons"><button type="button" autofocus onClick=${close}>Close</button></div>
<//>`;
