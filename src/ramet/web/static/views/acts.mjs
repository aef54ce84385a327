// The buttons for acts on one run.
import {button, canAct, html, isInterrupted, isPaused} from "./words.mjs";

export function Acts({page, row, withKeep}) {
  if (page.about.read_only) return html`<span class="acts soft">read-only</span>`;
  const act = (name, label, kind) => button(label, () => page.act(name, row), kind);
  return html`<span class="acts" role="group" aria-label="Acts on the run">
    ${row && isInterrupted(row) && act("resume", "Resume")}${row && canAct(row) && [
      act("message", "Message"), isPaused(row) ? act("resume", "Resume") : act("pause", "Pause"), act("raise", "Raise"),
    ]}${row && withKeep && act("keep", "Keep")}${row && canAct(row) && act("stop", "Stop", "danger")}</span>`;
}
