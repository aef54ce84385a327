// The table of all trees: only the lines in view are drawn, all of one height.
import {choice, grouped, html, isInterrupted, isPaused, isTyping, money, plural, runAddress, typed, useDraw, useLayoutEffect,
  useListener, useMemo, useNow, useRef, useRows, useState} from "./words.mjs";
import {comparisonOf, filterOf, outline} from "../tree/outline.mjs";
import {Acts} from "./acts.mjs";
import {COLUMNS, HEIGHT, Line} from "./tree_row.mjs";

const HEAD = 38, BEYOND = 6, REORDER_MS = 500;
const STATES = [
  ["all", "all states"], ["open", "not ended"], ["working"], ["waiting", "waits for a person, a limit or a pause"],
  ["silent"], ["paused"], ["failed"], ["ended"],
];
const BEGIN = html`<h2>No run is recorded here yet</h2><p>Begin one in this folder; it appears here as soon as it starts:</p>
  <pre class="code">ramet ask "What is in this folder?"</pre>`;
// What the reader chose outlives a visit to another view.
const memory = {folds: new Map(), words: "", state: "all", column: "", isDescending: true, focus: "", top: 0};

export function TreeTable({page}) {
  const {rows} = page;
  useRows(rows);
  const now = useNow();
  const draw = useDraw();
  const choose = (changes) => (Object.assign(memory, changes), draw());
  const grid = useRef(), search = useRef(), folds = useRef(0), cache = useRef(new Map()), latest = useRef({});
  const [top, setTop] = useState(memory.top), [height, setHeight] = useState(600);

  const fits = useMemo(() => filterOf(memory), [memory.words, memory.state]);
  const compare = useMemo(() => comparisonOf(memory.column, memory.isDescending), [memory.column, memory.isDescending]);
  // Values that order or filter lines change all the time: the order follows at most twice a second.
  const moment = fits || compare ? Math.floor(Date.now() / REORDER_MS) : 0;
  const lines = useMemo(
    () => outline(rows, {folds: memory.folds, fits, compare}), [rows.structure, folds.current, fits, compare, moment],
  );
  const focused = useMemo(() => Math.max(0, lines.findIndex((each) => each.id === memory.focus)), [lines, memory.focus]);
  const line = lines[focused], row = line?.kind === "run" ? line.node.row : null;

  useLayoutEffect(() => {
    const watch = new ResizeObserver(() => setHeight(grid.current.clientHeight));
    watch.observe(grid.current);
    grid.current.scrollTop = memory.top;
    if (document.activeElement === document.body) grid.current.focus({preventScroll: true}); // Its keys work without a click.
    return () => watch.disconnect();
  }, []);

  const show = (index) => {
    const box = grid.current, above = index * HEIGHT, room = box.clientHeight - HEAD - HEIGHT;
    if (above < box.scrollTop) box.scrollTop = above;
    else if (above > box.scrollTop + room) box.scrollTop = above - room;
  };
  const focus = (index) => {
    const to = Math.max(0, Math.min(lines.length - 1, index));
    if (lines[to]) choose({focus: lines[to].id});
    show(to);
  };
  const fold = (which, isOpen = !which.isExpanded) => {
    memory.folds.set(which.id, isOpen);
    folds.current += 1;
    choose({focus: which.id});
  };
  const open = (which) => {
    if (which?.kind === "group") fold(which);
    else if (which) location.hash = runAddress(which.id);
  };
  const parentIndex = () => {
    const index = lines.slice(0, focused).findLastIndex((each) => each.depth < line.depth);
    return index < 0 ? focused : index;
  };

  const screen = Math.floor(height / HEIGHT) - 2;
  const steps = {ArrowDown: 1, ArrowUp: -1, PageDown: screen, PageUp: -screen, Home: -Infinity, End: Infinity};
  const keys = {
    ArrowRight: () => (line?.isExpanded === false ? fold(line, true) : line?.isExpanded && focus(focused + 1)),
    ArrowLeft: () => (line?.isExpanded && !fits ? fold(line, false) : focus(parentIndex())),
    Enter: () => open(line),
    s: () => page.act("stop", row),
    p: () => page.act(row && (isPaused(row) || isInterrupted(row)) ? "resume" : "pause", row),
    m: () => page.act("message", row),
    r: () => page.act("raise", row),
    "*": () => (lines.forEach((each) => each.isExpanded === false && memory.folds.set(each.id, true)), folds.current += 1, draw()),
  };
  const onKey = (event) => {
    const {key} = event, step = steps[key];
    if (!(step || keys[key]) || event.ctrlKey || event.metaKey || event.altKey || event.target.tagName === "BUTTON") return;
    event.preventDefault();
    if (step) focus(focused + step);
    else keys[key]();
  };
  useListener("keydown", (event) => {
    if (event.key !== "/" || isTyping(event) || document.querySelector("dialog[open]")) return;
    event.preventDefault();
    search.current.focus();
  });

  const sort = (column) => choose(
    memory.column === column ? (memory.isDescending ? {isDescending: false} : {column: ""}) : {column, isDescending: column !== "path"},
  );
  const first = Math.max(0, Math.floor(top / HEIGHT) - BEYOND);
  const last = Math.min(lines.length, Math.ceil((top + height) / HEIGHT) + BEYOND);
  const size = last - first;

  // A line whose run did not change keeps its node of the last drawing, which Preact then skips.
  const before = cache.current, kept = cache.current = new Map();
  const drawn = (each, index) => {
    const isFocused = index === focused, inputs = [each, each.node?.row, each.node?.live, now, isFocused, size], old = before.get(index);
    const entry = inputs.every((input, at) => input === old?.inputs[at]) ? old : {inputs, node: html`<${Line} key=${index % size} line=${each} index=${index}
      now=${now} isFocused=${isFocused} onFold=${(which) => latest.current.fold(which)} onFocus=${(which) => choose({focus: which.id})} onOpen=${(which) => latest.current.open(which)} />`};
    kept.set(index, entry);
    return entry.node;
  };
  latest.current = {fold, open};

  return html`<section class="trees" aria-labelledby="trees"><h1 id="trees" class="unseen">Trees</h1>
    <div class="toolbar">
      <input ref=${search} type="search" aria-label="Filter runs" placeholder="Filter ( / )" value=${memory.words}
        onInput=${typed((words) => choose({words}))}
        onKeyDown=${(event) => (event.key === "Escape" || event.key === "Enter") && grid.current.focus()} />
      ${choice("State", memory.state, STATES, (state) => choose({state}))}
      <label><input type="checkbox" checked=${Boolean(page.ended)} onChange=${(event) => page.setEnded(event.target.checked)} /> ended trees</label>
      <${Totals} rows=${rows} shown=${lines.length} fits=${fits} />
      <${Acts} page=${page} row=${row} />
    </div>
    <div class="grid" role="treegrid" aria-label="Runs" aria-rowcount=${lines.length + 1} aria-colcount=${COLUMNS.length} tabindex="0"
        aria-activedescendant=${focused >= first && focused < last ? `line-${focused}` : null}
        ref=${grid} onKeyDown=${onKey}
        onScroll=${(event) => setTop(memory.top = event.currentTarget.scrollTop)}>
      <div class="line head" role="row" aria-rowindex="1">
        ${COLUMNS.map((each) => html`<div role="columnheader" class=${`cell ${each.name}`}
            aria-sort=${memory.column === each.name ? `${memory.isDescending ? "de" : "a"}scending` : null}>
          ${each.isFixed ? each.label : html`<button type="button" tabindex="-1" title="Sort siblings" onClick=${() => sort(each.name)}>${each.label}${memory.column === each.name && (memory.isDescending ? " ↓" : " ↑")}</button>`}
        </div>`)}
      </div>
      <div class="body" role="rowgroup" style=${{height: `${lines.length * HEIGHT}px`}}>
        ${lines.slice(first, last).map((each, offset) => drawn(each, first + offset))}
      </div>
      ${!lines.length && html`<div role="row" class="none"><div role="gridcell">${!rows.isComplete ? "Reading the runs…" : fits ? "No run fits the filter." : BEGIN}</div></div>`}
    </div>
  </section>`;
}

function Totals({rows, shown, fits}) {
  const sum = (valueOf) => rows.roots.reduce((all, each) => all + valueOf(each), 0);
  return html`<span class="totals">${plural(rows.roots.length, "tree")}, ${plural(rows.nodes.size, "run")},
    ${` ${grouped(sum(({row, live}) => live + !row.is_over))} not ended, ${money(sum(({row}) => row.subtree.usd))} USD`}${fits ? ` · ${plural(shown, "line")} shown` : ""}${rows.dropped ? ` · the oldest ${plural(rows.dropped, "ended tree")} left out` : ""}</span>`;
}
