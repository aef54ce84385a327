// The lines of the tree table: which runs are shown, in which order, at which depth. Only data, no drawing.
import {elapsed, isPaused, shownPath, silentFor} from "./state.mjs";

const GROUPED = 5; //: ended siblings of a run that is not over: more than these are one line

// Which rows fit a choice of states. Some are only of runs that are not over, some only of those that are.
const OPEN = {
  open: () => true,
  working: (row) => !row.waits_for && row.state === "running",
  waiting: (row) => ["person", "limit", "pause"].includes(row.waits_for),
  silent: (row) => silentFor(row, Date.now()) > 120_000 && !row.waits_for,
  paused: isPaused,
};
const OVER = {ended: () => true, failed: (row) => row.state !== "completed" && row.state !== "cancelled"};

const VALUES = {
  path: shownPath, agent: (row) => row.agent, state: (row) => row.state, model: (row) => row.model,
  elapsed: (row) => elapsed(row, Date.now()), silent: (row) => silentFor(row, Date.now()),
  tokens: (row) => row.subtree.tokens, usd: (row) => row.subtree.usd,
  context: (row) => (row.context_window ? row.context_tokens / row.context_window : 0),
};

/** Return a function of a node that tells whether the words and the state of a filter fit; null for no filter. */
export function filterOf({words = "", state = "all"}) {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  if (!wanted.length && state === "all") return null;
  return ({row}) => {
    if (state !== "all" && !(row.is_over ? OVER : OPEN)[state]?.(row)) return false;
    const text = [shownPath(row), row.agent, row.model, row.state, row.waits_for, row.id, row.description].join(" ").toLowerCase();
    return wanted.every((each) => text.includes(each));
  };
}

/** Return a comparison of siblings by a column; null for the order in which they were spawned. */
export function comparisonOf(column, isDescending) {
  const value = VALUES[column], sign = isDescending ? -1 : 1;
  return value ? (a, b) => {
    const first = value(a.row), second = value(b.row);
    return first < second ? -sign : first > second ? sign : 0;
  } : null;
}

/** Return the tree that is unfolded although it has ended: the newest one, if nothing is at work. */
function lastTree({roots}) {
  if (roots.some(({row, live}) => live || !row.is_over)) return null;
  return roots.map(({row}) => row).sort((a, b) => b.bornAt - a.bornAt)[0]?.id;
}

/**
 * Return the lines of the table. `folds` are the reader's choices by run; "ended ID" opens the ended children of ID.
 * With a filter, lines are the runs that fit and the runs above them, whatever is folded.
 */
export function outline(rows, {folds = new Map(), fits = null, compare = null} = {}) {
  const shown = fits && shownNodes(rows, fits);
  const lines = [], stack = [], last = lastTree(rows);
  const push = (nodes, depth, owner) => {
    const ofRuns = (list) => (compare ? [...list].sort(compare) : list).map((node) => ({kind: "run", id: node.id, node, depth}));
    const isGrouped = (each) => each.row.is_over && !each.live;
    const over = shown || !owner || owner.row.is_over ? [] : nodes.filter(isGrouped);
    let batch;
    if (over.length > GROUPED) {
      const id = `ended ${owner.id}`, isExpanded = folds.get(id) ?? false;
      batch = ofRuns(nodes.filter((each) => !isGrouped(each)));
      batch.push({kind: "group", id, depth, count: over.length, isExpanded}, ...(isExpanded ? ofRuns(over) : []));
    } else {
      batch = ofRuns(shown ? nodes.filter((each) => shown.has(each)) : nodes);
    }
    for (const line of batch.reverse()) stack.push(line);
  };
  push(rows.roots, 0, null);
  while (stack.length) {
    const line = stack.pop();
    lines.push(line);
    if (line.kind === "group" || !line.node.children.length) continue;
    // As the reader chose, else if something below it is not over.
    line.isExpanded = Boolean(shown) || (folds.get(line.id) ?? (line.node.live > 0 || line.node.row.root === last));
    line.isDimmed = Boolean(shown) && !fits(line.node);
    if (line.isExpanded) push(line.node.children, line.depth + 1, line.node);
  }
  return lines;
}

function shownNodes(rows, fits) {
  const shown = new Set();
  for (const node of rows.nodes.values()) {
    if (!fits(node)) continue;
    for (let each = node; each && !shown.has(each); each = each.parent) shown.add(each);
  }
  return shown;
}
