// The rows of all runs, as the feed tells of them: trees by parent, and how many runs of each subtree are not over.

const number = (value) => (Number.isFinite(value) ? value : 0);
const time = (value) => (value ? Date.parse(value) || 0 : 0);
const usageOf = (usage) => ({
  tokens: number(usage?.input_tokens) + number(usage?.output_tokens), usd: number(usage?.usd),
  calls: number(usage?.model_calls), tools: number(usage?.tool_calls), estimated: Boolean(usage?.estimated),
});

/** Return a row of the API with its times and usage as numbers. */
export const shaped = (row) => ({
  ...row, bornAt: time(row.born), endedAt: time(row.ended), lastAt: time(row.last_event_at),
  own: usageOf(row.usage), subtree: usageOf(row.usage_subtree),
});

const MOST = 30_000; //: with more runs, trees that have ended are dropped: a tab may be open for months
const open = ({row}) => (row.is_over ? 0 : 1);

/** Return a node and all above it. */
function above(node) {
  const nodes = [];
  for (; node; node = node.parent) nodes.push(node);
  return nodes;
}

const addLive = (node, change) => {
  for (; node; node = node.parent) node.live += change;
};

/** All runs, each as a node: {id, row, parent, children, live}. `live` counts the runs below it that are not over. */
export class Rows {
  nodes = new Map();
  roots = [];
  structure = 0; //: changes when a run comes, ends, or goes
  version = 0; //: changes with every row
  cursor = "";
  isComplete = false;
  dropped = 0; //: trees that were dropped because there are too many runs
  #most;
  #stale = new Set(); //: runs that are gone once a new picture is complete, unless it names them
  #listeners = new Set();
  #orphans = new Map(); //: runs by the id of a parent that is not known yet

  constructor(most = MOST) {
    this.#most = most;
  }

  /** Apply one message of the feed. With `reset` it begins a new picture. */
  apply({runs = [], removed = [], complete = true, reset}, cursor = "") {
    if (reset) {
      this.#stale = new Set(this.nodes.keys());
      this.cursor = "";
      this.isComplete = false;
    }
    for (const row of runs) this.#put(row);
    if (removed.length) this.#remove([...this.nodes.values()].filter(({row}) => removed.includes(row.root)));
    if (complete && !this.isComplete) {
      this.#remove(Array.from(this.#stale, (id) => this.nodes.get(id)));
      this.isComplete = true;
      this.structure += 1;
    }
    if (this.nodes.size > this.#most) this.#dropEnded();
    if (cursor) this.cursor = cursor;
    this.version += 1;
    for (const listener of this.#listeners) listener();
  }

  /** Call `listener` after each change; return the function that ends that. */
  subscribe(listener) {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /** Return the rows from the root to the run itself. */
  line = (id) => above(this.nodes.get(id)).map(({row}) => row).reverse();

  /** Return the rows below a run that match, at most `most`, and the number of all of them. */
  below(id, matches, most) {
    const rows = this.#below(this.nodes.get(id)).map(({row}) => row).filter(matches);
    return {rows: rows.slice(0, most), count: rows.length};
  }

  /** Return the message with which another tab gets this picture. */
  picture = () => ({runs: Array.from(this.nodes.values(), ({row}) => row), complete: this.isComplete});

  /** Return the nodes below a node, each before those below it. */
  #below(node) {
    const nodes = [], stack = [...(node?.children ?? [])].reverse();
    while (stack.length) {
      const each = stack.pop();
      nodes.push(each);
      for (let index = each.children.length - 1; index >= 0; index -= 1) stack.push(each.children[index]);
    }
    return nodes;
  }

  /** Drop the oldest trees that have ended, until a tenth of the room is free. */
  #dropEnded() {
    const ended = this.roots.filter((each) => each.row.is_over && !each.live && !each.row.parent);
    for (const root of ended.sort((a, b) => a.row.endedAt - b.row.endedAt)) {
      if (this.nodes.size <= this.#most * 0.9) return;
      this.#remove([root, ...this.#below(root)]);
      this.dropped += 1;
    }
  }

  #put(row) {
    if (typeof row?.id !== "string") return;
    const old = this.nodes.get(row.id), node = old ?? {id: row.id, parent: null, children: [], live: 0};
    const before = old ? open(old) : 0;
    node.row = shaped(row);
    this.#stale.delete(row.id);
    if (!old) this.#attach(node);
    if (open(node) !== before) {
      this.structure += 1;
      addLive(node.parent, open(node) - before);
    }
  }

  #attach(node) {
    this.structure += 1;
    this.nodes.set(node.id, node);
    const parent = this.nodes.get(node.row.parent), early = this.#orphans.get(node.id) ?? [];
    if (parent && parent !== node) {
      node.parent = parent;
      parent.children.push(node);
    } else {
      this.roots.push(node);
      if (node.row.parent) this.#orphans.set(node.row.parent, [...(this.#orphans.get(node.row.parent) ?? []), node]);
    }
    this.#orphans.delete(node.id);
    for (const child of early) { // Those that came before their parent were roots until now.
      if (this.nodes.get(child.id) !== child || above(node).includes(child)) continue;
      this.roots.splice(this.roots.indexOf(child), 1);
      child.parent = node;
      node.children.push(child);
      addLive(node, child.live + open(child));
    }
  }

  /** Remove nodes, the last one first. */
  #remove(nodes) {
    for (const node of nodes.reverse()) {
      if (!node) continue;
      this.structure += 1;
      this.nodes.delete(node.id);
      addLive(node.parent, -node.live - open(node));
      const siblings = node.parent?.children ?? this.roots;
      siblings.splice(siblings.indexOf(node), 1);
      for (const child of node.children) {
        child.parent = null;
        this.roots.push(child);
      }
    }
  }
}
