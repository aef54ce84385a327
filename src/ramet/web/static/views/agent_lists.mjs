// Teams with their capacity, and the agents in them. Keys are never shown.
import {html} from "../html.mjs";
import {count, dateAndTime, money} from "../data/format.mjs";
import {useLoaded} from "./hooks.mjs";
import {Bar} from "./tree_row.mjs";
import {RunLink, Trouble, Words} from "./words.mjs";

const AGAIN_MS = 5_000;

function Resource({name, team}) {
  const all = team.resources[name] || 0, held = team.held[name] || 0, spent = team.spent[name] || 0;
  const write = name === "usd" ? money : count;
  const words = `${name.replaceAll("_", " ")}: ${write(spent)} spent, ${write(held)} held, ${write(team.free[name] ?? 0)} free of ${write(all)}`;
  const limit = {usedPart: all ? Math.min(1, spent / all) : 1, reservedPart: all ? Math.min(1 - Math.min(1, spent / all), held / all) : 0};
  return html`<div><${Bar} limit=${limit} all=${words} /> ${words}</div>`;
}

const interruptAct = (agent) => ({
  title: `Interrupt ${agent.path}`, button: "Interrupt", url: `/v1/agents/${encodeURIComponent(agent.id)}/interrupt`, body: () => undefined, fields: [],
  about: () => html`<p>This ends the turn that the agent works on. The agent stays, and answers the next turn.</p>`,
  receipt: (answer) => html`<p>${answer.interrupted ? "The turn has ended." : "No turn was running."}</p>`,
});

export function AgentLists({page}) {
  const teams = useLoaded((signal) => page.api.get("/v1/teams", {signal}), [page.api], AGAIN_MS);
  const agents = useLoaded((signal) => page.api.get("/v1/agents", {signal}), [page.api], AGAIN_MS);
  const names = new Map((teams.value?.teams ?? []).map((each) => [each.id, each.name || each.id]));
  return html`<div class="page"><h1>Teams</h1><${Trouble} error=${teams.error} />
    ${teams.value && !teams.value.teams.length && html`<p class="soft">There are no teams.</p>`}
    ${(teams.value?.teams ?? []).map((each) => html`<section class="card" key=${each.id}><h2><${Words} text=${each.name || each.id} /></h2>
      <p class="soft">${each.agents} agents, since ${dateAndTime(each.created_at)}${each.bounded.length ? `; bounded by the machine: ${each.bounded.join(", ")}` : ""}</p>
      ${Object.keys(each.resources).map((name) => html`<${Resource} key=${name} name=${name} team=${each} />`)}</section>`)}
    <h1>Agents</h1><${Trouble} error=${agents.error} />
    ${agents.value && !agents.value.agents.length && html`<p class="soft">There are no agents.</p>`}
    ${agents.value?.agents.length > 0 && html`<div class="scroll" tabindex="0"><table class="table"><thead><tr><th>Path</th><th>Type</th><th>State</th><th>Turns</th><th>Isolation</th><th>Team</th><th></th></tr></thead>
      <tbody>${agents.value.agents.slice(0, 1000).map((each) => html`<tr key=${each.id}>
        <td>${each.run ? html`<${RunLink} id=${each.run} text=${each.path} />` : html`<${Words} text=${each.path} />`}</td>
        <td><${Words} text=${each.agent_type} /></td><td>${each.state}${each.error ? html`: <${Words} text=${each.error.message} />` : ""}</td>
        <td>${each.turns}</td><td>${each.isolation}</td><td><${Words} text=${names.get(each.team) ?? each.team} /></td>
        <td>${!page.about.read_only && each.state === "working" && html`<button type="button" onClick=${() => page.act(interruptAct(each), null)}>Interrupt</button>`}</td></tr>`)}</tbody></table></div>`}
  </div>`;
}
