// The runs of the kernel, as a list.
import { h, render } from "./vendor/preact.mjs";
import { useEffect, useState } from "./vendor/hooks.mjs";
import htm from "./vendor/htm.mjs";

const html = htm.bind(h);
const KEY = "ramet-token";

// The token comes in the fragment, which no server sees, and leaves the address at once.
const given = new URLSearchParams(location.hash.slice(1)).get("token");
if (given) {
  sessionStorage.setItem(KEY, given);
  history.replaceState(null, "", location.pathname);
}

async function get(path) {
  const answer = await fetch(new URL(path, location.href), {
    headers: { Authorization: `Bearer ${sessionStorage.getItem(KEY) ?? ""}` },
  });
  if (!answer.ok) throw new Error((await answer.json()).detail ?? answer.statusText);
  return answer.json();
}

function Runs() {
  const [runs, setRuns] = useState([]);
  const [problem, setProblem] = useState("");
  useEffect(() => {
    const load = () =>
      get("../v1/runs?ended=true").then(
        (page) => { setRuns(page.runs); setProblem(""); },
        (error) => setProblem(error.message),
      );
    load();
    const timer = setInterval(load, 2000);
    return () => clearInterval(timer);
  }, []);
  return html`
    ${problem && html`<p role="alert">${problem}</p>`}
    <table>
      <thead><tr><th>Run</th><th>Agent</th><th>State</th></tr></thead>
      <tbody>${runs.map((run) => html`
        <tr key=${run.id}><td>${run.path}</td><td>${run.agent}</td><td>${run.state}</td></tr>`)}
      </tbody>
    </table>`;
}

render(html`<${Runs} />`, document.getElementById("page"));
