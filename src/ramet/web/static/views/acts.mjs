// The buttons for acts on one run.
import {html} from "../html.mjs";
import {canAct, isInterrupted, isPaused} from "../tree/state.mjs";

export function Acts({page, row, withKeep}) {
  if (page.about.read_only) return html`<span class="acts soft">read-only</span>`;
  const button = (act, label, kind) => html`<button type="button" class=${kind} onClick=${() => page.act(act, row)}>${label}</button>`;
  return html`<span class="acts" role="group" aria-label="Acts on the run">
    ${row && isInterrupted(row) && button("resume", "Resume")}${row && canAct(row) && [
      button("message", "Message"), isPaused(row) ? button("resume", "Resume") : button("pause", "Pause"), button("raise", "Raise"),
    ]}${row && withKeep && button("keep", "Keep")}${row && canAct(row) && button("stop", "Stop", "danger")}</span>`;
}
