// One line of the tree table.
import {brief, count, duration, elapsed, html, megabytes, money, nameOf, percent, plural, runAddress, shownPath,
  silentFor, stateOf, words} from "./words.mjs";
import {limitsOf} from "../tree/limits.mjs";

const high = (isHigh, text) => html`<span class=${isHigh ? "high" : ""}>${text}</span>`;
const pair = (own, subtree) => html`<span class="own">${own}</span><span class="subtree">${subtree}</span>`;

/** The columns: the content and the title of a cell come from `draw` and `title`; siblings are sorted unless `isFixed`. */
export const COLUMNS = [
  {name: "path", label: "Run"},
  {name: "agent", label: "Agent", draw: (row) => words(row.agent, 60)},
  {name: "state", label: "State", draw: (row) => html`<${State} row=${row} />`},
  {name: "elapsed", label: "Elapsed", draw: (row, now) => duration(elapsed(row, now))},
  {name: "silent", label: "Silent for", draw: (row, now) => {
    const silent = silentFor(row, now);
    return silent >= 1000 && high(silent > 120_000 && !row.waits_for, duration(silent));
  }},
  {name: "tokens", label: "Tokens own | subtree", draw: ({own, subtree}) => pair(count(own.tokens), count(subtree.tokens))},
  {name: "usd", label: "USD own | subtree", draw: ({own, subtree}) => pair(money(own.usd), (subtree.estimated ? "~" : "") + money(subtree.usd)),
    title: (row) => row.subtree.estimated && "partly an estimate: a provider did not confirm it"},
  {name: "budget", label: "Budget", isFixed: true, draw: budget},
  {name: "model", label: "Model", draw: (row) => words(row.model, 60), title: (row) => brief(row.model, 100)},
  {name: "sandbox", label: "Sandbox", isFixed: true, draw: (row) => brief(sandboxWords(row), 60)},
  {name: "context", label: "Context",
    draw: ({context_tokens: used, context_window: all}) => used > 0 && (all ? high(used / all > 0.85, percent(used / all)) : count(used)),
    title: ({context_tokens: used, context_window: all}) => all && `${used} of ${all} tokens`},
];
export const HEIGHT = 30; //: of a line, as in tree.css
const INDENT = 14, DEEPEST = 12; //: deeper runs are indented no further, and show their depth as a number

/** A bar of one limit: used, reserved, left. */
export const Bar = ({limit, all}) => html`<span class="bar" role="img" aria-label=${all}>
  <span class=${`used ${limit.usedPart + limit.reservedPart > 0.9 ? "high" : ""}`} style=${{width: percent(limit.usedPart)}}></span>
  <span class="reserved" style=${{width: percent(limit.reservedPart)}}></span>
</span>`;

function budget(row) {
  const limits = limitsOf(row), all = limits.map((each) => each.words).join("; ");
  return all && html`<span class="budget" title=${all}><${Bar} limit=${limits[0]} all=${all} /><span>${limits[0].short}</span></span>`;
}

export const State = ({row}) => {
  const {text, kind} = stateOf(row);
  return html`<span class=${`state ${kind}`}>${brief(text, 60)}</span>`;
};

export function sandboxWords({sandbox, frozen_mb}) {
  if (!sandbox) return "";
  const limit = sandbox.memory_limit_mb ? megabytes(sandbox.memory_limit_mb) : "";
  const memory = sandbox.memory_mb ? `${megabytes(sandbox.memory_mb)}${limit && ` of ${limit}`}` : limit && `≤ ${limit}`;
  return [sandbox.backend, sandbox.level, memory, sandbox.cpu_s ? `${duration(sandbox.cpu_s * 1000)} CPU` : "",
    frozen_mb ? `frozen with ${megabytes(frozen_mb)}` : ""].filter(Boolean).join(" ");
}

export function Line({line, index, now, isFocused, onFold, onFocus, onOpen}) {
  const {depth, isExpanded, node} = line, {row, live, children} = node ?? {};
  const fold = () => onFold(line);
  const path = (title, content) => html`<div role="gridcell" class="cell path" title=${title} style=${{paddingInlineStart: `${Math.min(depth, DEEPEST) * INDENT}px`}}>
    <span class="fold" aria-hidden="true" onClick=${(event) => isExpanded !== undefined && (event.stopPropagation(), fold())}>${isExpanded ? "▾" : isExpanded === false && "▸"}</span>${content}</div>`;
  return html`<div role="row" id=${`line-${index}`} aria-level=${depth + 1} aria-rowindex=${index + 2}
      aria-expanded=${isExpanded === undefined ? null : String(isExpanded)} aria-selected=${String(isFocused)}
      class=${`line ${isFocused ? "focused" : ""} ${line.isDimmed ? "dimmed" : ""} ${row ? (row.is_over ? "over" : "") : "group"}`}
      style=${{top: `${index * HEIGHT}px`}} onClick=${() => onFocus(line)} onDblClick=${() => row && onOpen(line)}>
    ${!row ? path(undefined, html`<button type="button" class="link" tabindex="-1" onClick=${fold}>${plural(line.count, "ended run")}</button>`)
      : [path(brief(shownPath(row), 400), html`${depth > DEEPEST && html`<span class="depth">${depth}</span>`}
          <a href=${runAddress(row.id)} tabindex="-1"><bdi dir="auto">${brief(nameOf(row), 120)}</bdi></a>
          ${children.length > 0 && !isExpanded && html`<span class="below">${live ? `${count(live)} not ended below` : `${count(children.length)} below`}</span>`}
          <span class="description">${words(row.description, 100)}</span>`),
        COLUMNS.slice(1).map(({name, draw, title}) => html`<div role="gridcell" class=${`cell ${name}`} title=${title?.(row) || undefined}>${draw(row, now)}</div>`)]}
  </div>`;
}
