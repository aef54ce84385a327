// The entry of the page: takes the token, follows the changes, and shows the view that the address names.
import {html, render, useEffect, useMemo, useState} from "./html.mjs";
import {Api} from "./data/api.mjs";
import {share} from "./data/feed.mjs";
import {Rows} from "./data/rows.mjs";
import {takeToken} from "./data/token.mjs";
import {ActDialog, ACTS} from "./views/act_dialog.mjs";
import {AgentLists} from "./views/agent_lists.mjs";
import {Connection, Gone, Locked, useIdleLogout} from "./views/connection.mjs";
import {Help} from "./views/help.mjs";
import {useRows} from "./views/hooks.mjs";
import {Inbox, waitingCount} from "./views/inbox.mjs";
import {RunView} from "./views/run_view.mjs";
import {Passages, Schedules} from "./views/records.mjs";
import {TreeTable} from "./views/tree_table.mjs";

const VIEWS = [["", "Trees"], ["inbox", "Inbox"], ["agents", "Teams and agents"], ["schedules", "Schedules"], ["safety", "Safety"]];

const route = () => location.hash.replace(/^#\/?/, "").split("/").map((each) => decodeURIComponent(each));

function useRoute() {
  const [parts, set] = useState(route);
  useEffect(() => {
    const hear = () => set(route());
    addEventListener("hashchange", hear);
    return () => removeEventListener("hashchange", hear);
  }, []);
  return parts;
}

function App({token}) {
  const [locked, setLocked] = useState(token ? "" : "This tab has no token.");
  const [about, setAbout] = useState({read_only: false, kernel: true});
  const [connection, setConnection] = useState({kind: "connecting"}), [goneSince, setGoneSince] = useState("");
  const [ended, setEnded] = useState(false), [dialog, setDialog] = useState(null);
  const api = useMemo(() => new Api(token, () => setLocked("The token is not valid, or its time is over.")), [token]);
  const rows = useMemo(() => new Rows(), [api, ended]);
  const [view = "", id = "", tab = ""] = useRoute();

  useEffect(() => {
    if (!locked) api.get("about.json").then((answer) => setAbout({...about, ...answer}), () => {});
  }, [api]);
  useEffect(() => {
    if (locked) return undefined;
    const end = new AbortController();
    const hear = (state) => {
      if (state.kind === "refused") return setLocked("The token is not valid, or its time is over.");
      if (state.kind === "gone") setGoneSince((since) => since || new Date().toISOString());
      if (state.kind === "live") setGoneSince("");
      setConnection((old) => (old.kind === state.kind && old.retryAt === state.retryAt && old.isLeader === state.isLeader ? old : state));
    };
    share(api, rows, {ended, signal: end.signal, onState: hear});
    return () => end.abort();
  }, [api, rows, locked]);
  useIdleLogout(api, locked ? 0 : about.idle_minutes, setLocked);
  useEffect(() => {
    const hear = (event) => {
      if (event.key === "?" && !/^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)) setDialog({help: true});
    };
    addEventListener("keydown", hear);
    return () => removeEventListener("keydown", hear);
  }, []);

  if (locked) return html`<${Locked} reason=${locked} />`;
  const page = {
    api, rows, about, ended, setEnded,
    act: (act, row) => {
      const form = typeof act === "string" ? ACTS[act] : act;
      if (!about.read_only && form && (row || form.url)) setDialog({act: form, row});
    },
  };
  const close = () => setDialog(null);
  return html`
    <header class="top"><${Navigation} page=${page} view=${view} />
      <span class="folder"><bdi>${about.dir ?? ""}</bdi></span>
      <${Connection} state=${connection} about=${about} />
      <button type="button" class="quiet" aria-label="Keys" title="Keys ( ? )" onClick=${() => setDialog({help: true})}>?</button></header>
    <${Gone} state=${connection} since=${goneSince} />
    <main>${view === "run" ? html`<${RunView} key=${id} page=${page} id=${id} tab=${tab} />`
      : view === "inbox" ? html`<${Inbox} page=${page} />`
      : view === "agents" ? html`<${AgentLists} page=${page} />`
      : view === "schedules" ? html`<${Schedules} page=${page} />`
      : view === "safety" ? html`<${Passages} page=${page} />`
      : html`<${TreeTable} page=${page} />`}</main>
    ${dialog?.act && html`<${ActDialog} page=${page} ...${dialog} onClose=${close} />`}
    ${dialog?.help && html`<${Help} onClose=${close} />`}`;
}

function Navigation({page, view}) {
  useRows(page.rows);
  const waiting = waitingCount(page.rows);
  useEffect(() => {
    document.title = `${waiting ? `(${waiting}) ` : ""}ramet`;
  }, [waiting]);
  return html`<nav aria-label="Views">${VIEWS.map(([name, label]) => html`<a href=${`#/${name}`}
    aria-current=${view === name ? "page" : undefined}>${label}${name === "inbox" && waiting ? html` <span class="badge">${waiting}</span>` : ""}</a>`)}</nav>`;
}

const root = document.getElementById("app");
performance.mark("ramet-first-draw");
render(html`<${App} token=${takeToken()} />`, root);
