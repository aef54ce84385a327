// The entry of the page.
import {html, render, useEffect, useErrorBoundary, useMemo, useState} from "./html.mjs";
import {Api} from "./data/api.mjs";
import {share} from "./data/feed.mjs";
import {Rows} from "./data/rows.mjs";
import {brief, unescaped} from "./data/text.mjs";
import {isLink, takeToken} from "./data/token.mjs";
import {waitingCount} from "./tree/state.mjs";
import {Connection, Gone, Locked, useIdleLogout} from "./views/connection.mjs";
import {useRows} from "./views/hooks.mjs";
import {TreeTable} from "./views/tree_table.mjs";

const VIEWS = [["", "Trees"], ["inbox", "Inbox"], ["agents", "Teams and agents"], ["schedules", "Schedules"], ["safety", "Safety"], ["boards", "Boards"], ["kernels", "Kernels and keys"]];

// The other views are loaded after the first one is drawn, and stay.
const later = (load, name) => {
  const Later = (props) => {
    const [View, setView] = useState(null), [error, setError] = useState(null);
    useEffect(() => void load().then((module) => setView(() => module[name]), setError), []);
    return View ? html`<${View} ...${props} />` : error ? html`<p class="trouble page" role="alert">This view could not be loaded: reload the page.</p>` : null;
  };
  return Object.assign(Later, {load});
};
const RunView = later(() => import("./views/run_view.mjs"), "RunView");
const Inbox = later(() => import("./views/inbox.mjs"), "Inbox");
const AgentLists = later(() => import("./views/lists.mjs"), "AgentLists");
const Schedules = later(() => import("./views/lists.mjs"), "Schedules");
const Passages = later(() => import("./views/lists.mjs"), "Passages");
const Boards = later(() => import("./views/records.mjs"), "Boards");
const Kernels = later(() => import("./views/records.mjs"), "Kernels");
const ActDialog = later(() => import("./views/dialogs.mjs"), "ActDialog");
const Help = later(() => import("./views/dialogs.mjs"), "Help");

const route = () => location.hash.replace(/^#\/?/, "").split("/").map(unescaped);

function useRoute() {
  const [parts, set] = useState(route);
  useEffect(() => {
    const hear = () => set(route());
    addEventListener("hashchange", hear);
    return () => removeEventListener("hashchange", hear);
  }, []);
  return parts;
}

/** A part of the page that can fail without the rest. */
function Guard({tab, children}) {
  const [error, retry] = useErrorBoundary();
  useEffect(() => void (error && retry()), [tab]); // Another part of the view may be drawn.
  return error ? html`<p class="trouble page" role="alert">This view cannot be drawn: ${brief(error?.message ?? error, 200)}.
    <button type="button" class="quiet" onClick=${retry}>Try again</button></p>` : children;
}

function App({token, reason}) {
  const [locked, setLocked] = useState(token ? "" : reason);
  const [about, setAbout] = useState({read_only: false, kernel: true});
  const [connection, setConnection] = useState({kind: "connecting"}), [goneSince, setGoneSince] = useState("");
  const [ended, setEnded] = useState(null), [dialog, setDialog] = useState(null);
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
      if (state.kind === "live") {
        setGoneSince("");
        if (ended === null && rows.isComplete && !rows.nodes.size) setEnded(true); // Nothing is active: show what is recorded.
      }
      setConnection((old) => (old.kind === state.kind && old.retryAt === state.retryAt && old.isLeader === state.isLeader ? old : state));
    };
    share(api, rows, {ended: Boolean(ended), signal: end.signal, onState: hear});
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

  useEffect(() => setDialog(null), [view, id]); // A link in a receipt leads to another view.

  if (locked) return html`<${Locked} reason=${locked} />`;
  const page = {
    api, rows, about, ended, setEnded,
    act: (act, row) => {
      if (!about.read_only && (row || act.url)) setDialog({act, row, key: Date.now()});
    },
  };
  const close = () => setDialog((now) => (now === dialog ? null : now));
  return html`
    <header class="top"><${Navigation} page=${page} view=${view} />
      <span class="folder"><bdi>${about.dir ?? ""}</bdi></span>
      <${Connection} state=${connection} about=${about} />
      <button type="button" class="quiet" aria-label="Keys" title="Keys ( ? )" onClick=${() => setDialog({help: true})}>?</button></header>
    <${Gone} state=${connection} since=${goneSince} />
    <main><${Guard} key=${`${view}/${id}`} tab=${tab}>${view === "run" ? html`<${RunView} key=${id} page=${page} id=${id} tab=${tab} />`
      : view === "inbox" ? html`<${Inbox} page=${page} />`
      : view === "agents" ? html`<${AgentLists} page=${page} />`
      : view === "schedules" ? html`<${Schedules} page=${page} />`
      : view === "safety" ? html`<${Passages} page=${page} />`
      : view === "boards" ? html`<${Boards} page=${page} />`
      : view === "kernels" ? html`<${Kernels} page=${page} />`
      : html`<${TreeTable} page=${page} />`}<//></main>
    ${dialog?.act && html`<${ActDialog} key=${dialog.key} page=${page} act=${dialog.act} row=${dialog.row} onClose=${close} />`}
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

// A new link in a tab with the page does not load it.
addEventListener("hashchange", async () => isLink() && (await takeToken(), location.reload()));
const root = document.getElementById("app");
const {token, reason} = await takeToken();
root.replaceChildren(); // The frame of the page, which was painted until now.
render(html`<${App} token=${token} reason=${reason} />`, root);
performance.mark("drawn"); // For `python -m benchmarks ui`.
setTimeout(() => [RunView, Inbox, AgentLists, Schedules, ActDialog, Help].forEach((each) => each.load().catch(() => {})), 1000);
