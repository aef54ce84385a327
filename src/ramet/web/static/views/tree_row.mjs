// One line of the tree table.
import {html} from "../html.mjs";
import {count, duration, megabytes, money, percent, plural} from "../data/format.mjs";
import {brief} from "../data/text.mjs";
import {limitsOf, shortLimit} from "../tree/limits.mjs";
import {elapsed, nameOf, shownPath, silentFor, stateOf} from "../tree/state.mjs";
import {runAddress} from "./words.mjs";

export const COLUMNS = [
  {name: "path", label: "Run"},
  {name: "agent", label: "Agent"},
  {name: "state", label: "State"},
  {name: "elapsed", label: "Elapsed"},
  {name: "silent", label: "Silent for"},
  {name: "tokens", label: "Tokens own | subtree"},
  {name: "usd", label: "USD own | subtree"},
  {name: "budget", label: "Budget", isFixed: true},
  {name: "model", label: "Model"},
  {name: "sandbox", label: "Sandbox", isFixed: true},
  {name: "context", label: "Context"},
];
export const HEIGHT = 30; //: of a line, as in tree.css
const INDENT = 14, DEEPEST = 12; //: deeper runs are indented no further, and show their depth as a number

const Cell = ({name, title, children}) =>
  html`<div role="gridcell" class=${`cell ${name}`} title=${title}>${children}</div>`;

/** A bar of one limit: used, reserved, left. */
export const Bar = ({limit, all}) => html`<span class="bar" role="img" aria-label=${all}>
  <span class=${`used ${limit.usedPart + limit.reservedPart > 0.9 ? "high" : ""}`} style=${{width: percent(limit.usedPart)}}></span>
  <span class="reserved" style=${{width: percent(limit.reservedPart)}}></span>
</span>`;

export function Budget({row}) {
  const limits = limitsOf(row);
  if (!limits.length) return null;
  const all = limits.map((each) => each.words).join("; ");
  return html`<span class="budget" title=${all}><${Bar} limit=${limits[0]} all=${all} /><span>${shortLimit(limits[0])}</span></span>`;
}

export const State = ({row}) => {
  const {text, kind} = stateOf(row);
  return html`<span class=${`state ${kind}`}>${brief(text, 60)}</span>`;
};

const Pair = ({own, subtree}) => html`<span class="own">${own}</span><span class="subtree">${subtree}</span>`;

export function sandboxWords({sandbox, frozen_mb}) {
  if (!sandbox) return "";
  const limit = sandbox.memory_limit_mb ? megabytes(sandbox.memory_limit_mb) : "";
  const memory = sandbox.memory_mb ? `${megabytes(sandbox.memory_mb)}${limit && ` of ${limit}`}` : limit && `≤ ${limit}`;
  return [sandbox.backend, sandbox.level, memory, sandbox.cpu_s ? `${duration(sandbox.cpu_s * 1000)} CPU` : "",
    frozen_mb ? `frozen with ${megabytes(frozen_mb)}` : ""].filter(Boolean).join(" ");
}

function Fold({line, onFold}) {
  if (line.isExpanded === undefined) return html`<span class="fold"></span>`;
  return html`<span class="fold" aria-hidden="true" onClick=${(event) => (event.stopPropagation(), onFold(line))}>${line.isExpanded ? "▾" : "▸"}</span>`;
}

const indent = (depth) => ({paddingInlineStart: `${Math.min(depth, DEEPEST) * INDENT}px`});

export function Line({line, index, now, isFocused, onFold, onFocus, onOpen}) {
  const shared = {
    role: "row", id: `line-${index}`, "aria-level": line.depth + 1, "aria-rowindex": index + 2,
    "aria-expanded": line.isExpanded === undefined ? undefined : String(line.isExpanded),
    "aria-selected": String(isFocused),
    style: {top: `${index * HEIGHT}px`}, onClick: () => onFocus(line),
  };
  if (line.kind === "group") {
    return html`<div ...${shared} class=${`line group ${isFocused ? "focused" : ""}`}>
      <div role="gridcell" class="cell path" style=${indent(line.depth)}><${Fold} line=${line} onFold=${onFold} />
        <button type="button" class="link" tabindex="-1" onClick=${() => onFold(line)}>${plural(line.count, "ended run")}</button></div>
    </div>`;
  }
  const {row, live, children} = line.node;
  const path = brief(shownPath(row), 400), silent = silentFor(row, now);
  const context = row.context_window ? row.context_tokens / row.context_window : 0;
  return html`<div ...${shared} class=${`line ${isFocused ? "focused" : ""} ${line.isDimmed ? "dimmed" : ""} ${row.is_over ? "over" : ""}`}
      onDblClick=${() => onOpen(line)}>
    <div role="gridcell" class="cell path" title=${path} style=${indent(line.depth)}>
      <${Fold} line=${line} onFold=${onFold} />
      ${line.depth > DEEPEST && html`<span class="depth">${line.depth}</span>`}
      <a href=${runAddress(row.id)} tabindex="-1"><bdi dir="auto">${brief(nameOf(row), 120)}</bdi></a>
      ${children.length > 0 && !line.isExpanded && html`<span class="below">${live ? `${count(live)} not ended below` : `${count(children.length)} below`}</span>`}
      <span class="description"><bdi dir="auto">${brief(row.description, 100)}</bdi></span>
    </div>
    <${Cell} name="agent"><bdi dir="auto">${brief(row.agent, 60)}</bdi><//>
    <${Cell} name="state"><${State} row=${row} /><//>
    <${Cell} name="elapsed">${duration(elapsed(row, now))}<//>
    <${Cell} name="silent"><span class=${silent > 120_000 && !row.waits_for ? "high" : ""}>${silent >= 1000 ? duration(silent) : ""}</span><//>
    <${Cell} name="tokens"><${Pair} own=${count(row.own.tokens)} subtree=${count(row.subtree.tokens)} /><//>
    <${Cell} name="usd" title=${row.subtree.estimated ? "partly an estimate: a provider did not confirm it" : undefined}>
      <${Pair} own=${money(row.own.usd)} subtree=${(row.subtree.estimated ? "~" : "") + money(row.subtree.usd)} /><//>
    <${Cell} name="budget"><${Budget} row=${row} /><//>
    <${Cell} name="model" title=${brief(row.model, 100)}><bdi dir="auto">${brief(row.model, 60)}</bdi><//>
    <${Cell} name="sandbox">${brief(sandboxWords(row), 60)}<//>
    <${Cell} name="context" title=${row.context_window ? `${row.context_tokens} of ${row.context_window} tokens` : undefined}>
      <span class=${context > 0.85 ? "high" : ""}>${context ? percent(context) : row.context_tokens ? count(row.context_tokens) : ""}</span><//>
  </div>`;
}
