// The rows of all runs, as the feed tells of them: trees by parent, and how many runs of each subtree are not over.

const number = (value) => (typeof value === "number" && Number.isFinite(value) ? value : 0);
const time = (value) => (value ? Date.parse(value) || 0 : 0);

/** Return a row of the API with its times and usage as numbers. */
export const shaped = (row) => ({
  ...row, bornAt: time(row.born), endedAt: time(row.ended), lastAt: time(row.last_event_at),
  own: usageOf(row.usage), subtree: usageOf(row.usage_subtree),
});

const MOST = 30_000; //: with more runs, trees that have ended are dropped: a tab may be open for months

/** A run of the table. `live` counts the runs below it that are not over. */
class Node {
  constructor(id) {
    Object.assign(this, {id, row: null, parent: null, children: [], live: 0, generation: 0});
  }
}

export class Rows {
  nodes = new Map();
  roots = [];
  structure = 0; //: changes when a run comes, ends, or goes
  version = 0; //: changes with every row
  cursor = "";
  isComplete = false;
  dropped = 0; //: trees that were dropped because there are too many runs
  #generation = 1;
  #listeners = new Set();
  #orphans = new Map(); //: runs by the id of a parent that is not known yet

  #most;

  constructor(most = MOST) {
    this.#most = most;
  }

  /** Begin a first picture: runs that it does not name are gone once it is complete. */
  restart() {
    this.#generation += 1;
    this.cursor = "";
    this.isComplete = false;
  }

  /** Apply one message of the feed. */
  apply({runs = [], removed = [], complete = true, reset = false}, cursor = "") {
    if (reset) this.restart();
    for (const row of runs) this.#put(row);
    if (removed.length) for (const {id, row} of [...this.nodes.values()].reverse()) if (removed.includes(row.root)) this.#remove(id);
    if (complete && !this.isComplete) {
      for (const node of [...this.nodes.values()]) if (node.generation < this.#generation) this.#remove(node.id);
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

  get(id) {
    return this.nodes.get(id)?.row ?? null;
  }

  /** Return the rows from the root to the run itself. */
  line(id) {
    const rows = [];
    for (let node = this.nodes.get(id); node?.row; node = node.parent) rows.unshift(node.row);
    return rows;
  }

  /** Return the rows below a run that match, at most `most`, and the number of all of them. */
  below(id, matches = () => true, most = Infinity) {
    const rows = [], stack = [...(this.nodes.get(id)?.children ?? [])].reverse();
    let count = 0;
    while (stack.length) {
      const node = stack.pop();
      if (matches(node.row)) {
        count += 1;
        if (rows.length < most) rows.push(node.row);
      }
      for (let index = node.children.length - 1; index >= 0; index -= 1) stack.push(node.children[index]);
    }
    return {rows, count};
  }

  /** Return the message with which another tab gets this picture. */
  picture() {
    return {runs: Array.from(this.nodes.values(), (each) => each.row), complete: this.isComplete};
  }

  /** Drop the oldest trees that have ended, until a tenth of the room is free. */
  #dropEnded() {
    const room = this.#most * 0.9, ended = this.roots.filter((each) => each.row.is_over && !each.live && !each.row.parent);
    for (const root of ended.sort((a, b) => a.row.endedAt - b.row.endedAt)) {
      if (this.nodes.size <= room) return;
      for (const {id} of [root.row, ...this.below(root.id).rows].reverse()) this.#remove(id);
      this.dropped += 1;
    }
  }

  #put(row) {
    if (!row || typeof row.id !== "string") return;
    let node = this.nodes.get(row.id);
    const wasOpen = Boolean(node?.row && !node.row.is_over), isNew = !node;
    if (isNew) {
      node = new Node(row.id);
      this.nodes.set(row.id, node);
    }
    node.row = shaped(row);
    node.generation = this.#generation;
    if (isNew) this.#attach(node);
    const change = (row.is_over ? 0 : 1) - (wasOpen ? 1 : 0);
    if (change) {
      this.structure += 1;
      for (let above = node.parent; above; above = above.parent) above.live += change;
    }
  }

  #attach(node) {
    this.structure += 1;
    const above = node.row.parent, parent = this.nodes.get(above);
    if (parent && !isAbove(node, parent)) {
      node.parent = parent;
      parent.children.push(node);
    } else {
      this.roots.push(node);
      if (above) this.#orphans.set(above, [...(this.#orphans.get(above) ?? []), node]);
    }
    const early = this.#orphans.get(node.id); // Children that came before their parent were roots until now.
    if (!early) return;
    this.#orphans.delete(node.id);
    for (const child of early) {
      if (this.nodes.get(child.id) !== child || isAbove(child, node)) continue;
      this.roots.splice(this.roots.indexOf(child), 1);
      child.parent = node;
      node.children.push(child);
      const open = child.live + (child.row.is_over ? 0 : 1);
      for (let each = node; each; each = each.parent) each.live += open;
    }
  }

  #remove(id) {
    const node = this.nodes.get(id);
    if (!node) return;
    this.structure += 1;
    this.nodes.delete(id);
    const open = node.live + (node.row.is_over ? 0 : 1);
    for (let above = node.parent; above; above = above.parent) above.live -= open;
    const siblings = node.parent ? node.parent.children : this.roots;
    siblings.splice(siblings.indexOf(node), 1);
    for (const child of node.children) {
      child.parent = null;
      this.roots.push(child);
    }
  }
}

function isAbove(node, other) {
  for (let each = other; each; each = each.parent) if (each === node) return true;
  return false;
}

function usageOf(usage) {
  return {
    tokens: number(usage?.input_tokens) + number(usage?.output_tokens), usd: number(usage?.usd),
    calls: number(usage?.model_calls), tools: number(usage?.tool_calls), estimated: Boolean(usage?.estimated),
  };
}
