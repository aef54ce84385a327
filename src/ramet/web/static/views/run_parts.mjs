// Parts of one run beside its transcript: sandbox and rights, files, state.
import {html, useState} from "../html.mjs";
import {runPath} from "../data/api.mjs";
import {clock, dateAndTime, plural} from "../data/format.mjs";
import {describe} from "../data/transcript.mjs";
import {useLoaded} from "./hooks.mjs";
import {sandboxWords} from "./tree_row.mjs";
import {LongWords, Trouble, Words} from "./words.mjs";

export function Rights({transcript, row}) {
  const {rights, endpoints, sandbox} = transcript;
  return html`<section>
    <h3>Sandbox</h3>${sandbox || row.sandbox ? html`<p>${sandboxWords(row) || `${sandbox.backend} ${sandbox.level}`}</p>` : html`<p class="soft">This run has no sandbox: it is part of the host, or shares that of the run above.</p>`}
    ${sandbox?.policy && html`<details><summary>Granted policy</summary><${LongWords} text=${sandbox.policy} isCode /></details>`}
    <h3>Clamps, refusals and hooks</h3>
    ${rights.length ? html`<ul class="rights">${rights.slice(-500).map((each) => html`<li><span class="time">${clock(each.at)}</span> <${Words} text=${describe(each)} most=${400} /></li>`)}</ul>` : html`<p class="soft">None is recorded.</p>`}
    <h3>Endpoints asked</h3>
    ${endpoints.size ? html`<div class="scroll" tabindex="0"><table class="table"><thead><tr><th>Endpoint</th><th>Allowed</th><th>Denied</th><th>Reason</th></tr></thead>
      <tbody>${[...endpoints].slice(0, 500).map(([name, each]) => html`<tr><td><${Words} text=${name} /></td><td>${each.allowed}</td><td class=${each.denied ? "high" : ""}>${each.denied}</td><td><${Words} text=${each.reason} /></td></tr>`)}</tbody></table></div>` : html`<p class="soft">None was asked.</p>`}
  </section>`;
}

export function Files({page, row, result}) {
  const [path, setPath] = useState(""), [shown, setShown] = useState(null), [error, setError] = useState(null);
  const read = async (event) => {
    event.preventDefault();
    try {
      const answer = await page.api.request("GET", `${runPath(row.id, "/file")}?path=${encodeURIComponent(path)}`);
      setShown({path, text: new TextDecoder().decode(await answer.arrayBuffer())});
      setError(null);
    } catch (problem) {
      setShown(null);
      setError(problem);
    }
  };
  const artifacts = result?.artifacts ?? [], files = result?.files ?? [];
  return html`<section>
    <h3>Artifacts</h3>${artifacts.length ? html`<ul class="paths">${artifacts.map((each) => html`<li><${Words} text=${each} most=${400} /></li>`)}</ul>` : html`<p class="soft">${row.is_over ? "The run left none." : "Artifacts are known once the run has ended."}</p>`}
    <h3>Files left in its working directory</h3>${files.length ? html`<ul class="paths">${files.map((each) => html`<li><${Words} text=${each.name} most=${300} /> <span class="soft">${plural(each.size, "byte")}</span></li>`)}</ul>` : html`<p class="soft">${row.is_over ? "None." : "They are known once the run has ended."}</p>`}
    ${!row.is_over && html`<h3>Read a file of its workspace</h3><form class="toolbar" onSubmit=${read}><input aria-label="Path in the workspace" placeholder="out/report.md" dir="auto" required value=${path} onInput=${(event) => setPath(event.target.value)} /><button type="submit">Read</button></form>`}
    <${Trouble} error=${error} />${shown && html`<h3><${Words} text=${shown.path} /></h3><${LongWords} text=${shown.text} isCode />`}
    ${["stdout", "stderr"].map((name) => result?.[name] && html`<h3>${name === "stdout" ? "Printed" : "Printed to stderr"}</h3><${LongWords} text=${result[name]} isCode />`)}
  </section>`;
}

export function RunState({page, id, at}) {
  const values = useLoaded((signal) => page.api.get(runPath(id, `/state${at ? `?at=${at}` : ""}`), {signal}), [id, at]);
  const versions = useLoaded((signal) => page.api.get(runPath(id, "/state/versions"), {signal}), [id]);
  return html`<section><h3>Values</h3><${Trouble} error=${values.error} />
    ${values.value && (Object.keys(values.value.values).length ? html`<${LongWords} text=${values.value.values} isCode />` : html`<p class="soft">The state of this run is empty.</p>`)}
    <h3>Versions</h3>${versions.value && html`<ul class="rights">${versions.value.versions.map((each) => html`<li><span class="time">${dateAndTime(each.at)}</span> <code>${each.id.slice(0, 12)}</code> <${Words} text=${each.message} /></li>`)}</ul>`}
    ${versions.value && !versions.value.versions.length && html`<p class="soft">There are none.</p>`}</section>`;
}
