// The bars of a flame strip: each run of a tree as a bar, by time or by cost. Only data, no drawing.
const NARROWEST = 0.0008, MOST = 1_500;

/** Return {bars, levels, hidden, from, to}: `left` and `width` are parts of 1. Narrow bars are left out and counted. */
export function flame(node, by, now) {
  const bars = [];
  let hidden = 0, levels = 0;
  const from = node.row.bornAt, to = Math.max(from + 1, node.row.is_over ? node.row.endedAt : now);
  const stack = [{node, depth: 0, left: 0, width: 1}];
  while (stack.length) {
    const {node: each, depth, left, width} = stack.pop();
    if (width < NARROWEST || bars.length >= MOST) {
      hidden += 1;
      continue;
    }
    bars.push({id: each.id, row: each.row, depth, left, width});
    levels = Math.max(levels, depth + 1);
    if (by === "time") {
      for (const child of each.children) {
        const start = Math.max(0, (child.row.bornAt - from) / (to - from));
        const end = ((child.row.is_over ? child.row.endedAt : now) - from) / (to - from);
        stack.push({node: child, depth: depth + 1, left: start, width: Math.max(0, Math.min(1, end) - start)});
      }
      continue;
    }
    const total = each.row.subtree.usd || each.row.subtree.tokens;
    const cost = (row) => (each.row.subtree.usd ? row.subtree.usd : row.subtree.tokens);
    let offset = left;
    for (const child of each.children) {
      const part = total ? Math.min(1, cost(child.row) / total) * width : 0;
      stack.push({node: child, depth: depth + 1, left: offset, width: part});
      offset += part;
    }
  }
  return {bars, levels, hidden, from, to};
}
