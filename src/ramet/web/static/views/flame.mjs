// A flame strip of a run and all below it. By time, bars of siblings may lie on one another.
import {brief, choice, count, duration, elapsed, html, money, nameOf, none, runAddress, soft, stateOf, useNow,
  useState} from "./words.mjs";
import {flame} from "../tree/flame.mjs";

const HEIGHT = 20;

export function Flame({page, id}) {
  const [by, setBy] = useState("time"), now = useNow();
  const node = page.rows.nodes.get(id);
  if (!node) return none("Turn on “ended trees” in the table to see the flame strip of an ended tree.");
  const {bars, levels, hidden, from, to} = flame(node, by, now);
  const words = (row) => `${brief(nameOf(row), 80)}: ${stateOf(row).text}, ${duration(elapsed(row, now))}, ${money(row.subtree.usd)} USD and ${count(row.subtree.tokens)} tokens with all below`;
  return html`<section><div class="toolbar">${choice("Width", by, [["time", "by time"], ["cost", "by cost"]], setBy)}
      ${soft(`${by === "time" ? `${duration(to - from)} in all` : "USD of the subtree; tokens where nothing was paid"}${hidden ? `; ${hidden} narrow bars are left out` : ""}`)}</div>
    <ul class="flame" style=${{height: `${levels * HEIGHT}px`}}>${bars.map(({node: {row}, depth, left, width}) => html`<li key=${row.id}>
      <a href=${runAddress(row.id, "flame")} class=${`flame-bar ${stateOf(row).kind}`} title=${words(row)} aria-label=${words(row)}
        style=${{left: `${left * 100}%`, width: `${width * 100}%`, top: `${depth * HEIGHT}px`}}><bdi dir="auto">${width > 0.03 ? brief(nameOf(row), 60) : ""}</bdi></a></li>`)}</ul></section>`;
}
