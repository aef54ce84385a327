// The lines of the tree table: which runs are shown, in which order, at which depth. Only data, no drawing.
import {elapsed, isPaused, shownPath, silentFor} from "./state.mjs";

const GROUPED = 5; //: ended siblings of a run that is not over: more than these are one line

const OF_STATE = {
  all: () => true,
  open: (row) => !row.is_over,
  working: (row) => !row.is_over && !row.waits_for && row.state === "running",
  waiting: (row) => !row.is_over && ["person", "limit", "pause"].includes(row.waits_for),
  silent: (row) => !row.is_over && silentFor(row, Date.now()) > 120_000 && !row.waits_for,
  paused: (row) => !row.is_over && isPaused(row),
  failed: (row) => row.is_over && row.state !== "completed" && row.state !== "cancelled",
  ended: (row) => Boolean(row.is_over),
};

const VALUES = {
  path: (row) => shownPath(row), agent: (row) => row.agent, state: (row) => row.state, model: (row) => row.model,
  elapsed: (row) => elapsed(row, Date.now()), silent: (row) => silentFor(row, Date.now()),
  tokens: (row) => row.subtree.tokens, usd: (row) => row.subtree.usd,
  context: (row) => (row.context_window ? row.context_tokens / row.context_window : 0),
};

/** Return a function of a node that tells whether the words and the state of a filter fit; null for no filter. */
export function filterOf({words = "", state = "all"}) {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  const fits = OF_STATE[state] ?? OF_STATE.all;
  if (!wanted.length && fits === OF_STATE.all) return null;
  return ({row}) => {
    if (!fits(row)) return false;
    if (!wanted.length) return true;
    const text = `${shownPath(row)} ${row.agent} ${row.model} ${row.state} ${row.waits_for ?? ""} ${row.id} ${row.description}`.toLowerCase();
    return wanted.every((each) => text.includes(each));
  };
}

/** Return a comparison of siblings by a column; null for the order in which they were spawned. */
export function comparisonOf(column, isDescending) {
  const value = VALUES[column];
  if (!value) return null;
  const sign = isDescending ? -1 : 1;
  return (a, b) => {
    const first = value(a.row), second = value(b.row);
    return first < second ? -sign : first > second ? sign : 0;
  };
}

/** Return the tree that is unfolded although it has ended: the newest one, if nothing is at work. */
function lastTree({roots}) {
  if (roots.some(({row, live}) => live || !row.is_over)) return null;
  return roots.reduce((last, {row}) => (last && last.bornAt >= row.bornAt ? last : row), null)?.id;
}

/**
 * Return the lines of the table. `folds` are the reader's choices by run; "ended ID" opens the ended children of ID.
 * With a filter, lines are the runs that fit and the runs above them, whatever is folded.
 */
export function outline(rows, {folds = new Map(), fits = null, compare = null} = {}) {
  const shown = fits && shownNodes(rows, fits);
  const lines = [], last = lastTree(rows);
  const ordered = (nodes) => (compare ? [...nodes].sort(compare) : nodes);
  const stack = [];
  const push = (nodes, depth, owner) => {
    let list = shown ? nodes.filter((each) => shown.has(each)) : nodes;
    let group = null;
    if (!shown && owner && !owner.row.is_over) {
      const over = list.filter((each) => each.row.is_over && !each.live);
      if (over.length > GROUPED) {
        const hidden = new Set(over);
        const isExpanded = folds.get(`ended ${owner.id}`) ?? false;
        group = {kind: "group", id: `ended ${owner.id}`, owner, depth, count: over.length, isExpanded, members: over};
        list = list.filter((each) => !hidden.has(each));
      }
    }
    const batch = ordered(list).map((node) => ({kind: "run", id: node.id, node, depth}));
    if (group) {
      batch.push(group);
      if (group.isExpanded) for (const node of ordered(group.members)) batch.push({kind: "run", id: node.id, node, depth});
    }
    for (let index = batch.length - 1; index >= 0; index -= 1) stack.push(batch[index]);
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
