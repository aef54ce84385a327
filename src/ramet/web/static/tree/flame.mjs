// The bars of a flame strip: each run of a tree as a bar, by time or by cost. Only data, no drawing.
const NARROWEST = 0.0008, MOST = 1_500;

/** Return {bars, levels, hidden, from, to}: `left` and `width` are parts of 1. Narrow bars are left out and counted. */
export function flame(top, by, now) {
  const endOf = ({row}) => (row.is_over ? row.endedAt : now), from = top.row.bornAt, to = Math.max(from + 1, endOf(top));
  const bars = [], stack = [{node: top, depth: 0, left: 0, width: 1}];
  let hidden = 0, levels = 0;
  while (stack.length) {
    const bar = stack.pop(), {node, depth, left, width} = bar, all = node.row.subtree, unit = all.usd ? "usd" : "tokens";
    if (width < NARROWEST || bars.length >= MOST) {
      hidden += 1;
      continue;
    }
    bars.push(bar);
    levels = Math.max(levels, depth + 1);
    let start = left;
    for (const child of node.children) {
      let part = all[unit] ? Math.min(1, child.row.subtree[unit] / all[unit]) * width : 0;
      if (by === "time") {
        start = Math.max(0, (child.row.bornAt - from) / (to - from));
        part = Math.max(0, Math.min(1, (endOf(child) - from) / (to - from)) - start);
      }
      stack.push({node: child, depth: depth + 1, left: start, width: part});
      start += part;
    }
  }
  return {bars, levels, hidden, from, to};
}
