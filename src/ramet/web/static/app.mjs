// The entry of the page: takes the token, follows the changes, and shows the view that the address names.
import {Api} from "./data/api.mjs";
import {share} from "./data/feed.mjs";
import {Rows} from "./data/rows.mjs";
import {isLink, takeToken} from "./data/token.mjs";
import {Connection, Gone, Locked, useIdleLogout} from "./views/connection.mjs";
import {TreeTable} from "./views/tree_table.mjs";
import {brief, button, html, isTyping, render, unescaped, useEffect, useErrorBoundary, useListener, useMemo, useRows,
  useState, waitingCount} from "./views/words.mjs";

// The other views are loaded after the first one is drawn, and stay.
const later = (load, name) => {
  const Later = (props) => {
    const [View, setView] = useState(null), [error, setError] = useState(null);
    useEffect(() => void load().then((module) => setView(() => module[name]), setError), []);
    return View ? html`<${View} ...${props} />` : error ? html`<p class="trouble page" role="alert">This view could not be loaded: reload the page.</p>` : null;
  };
  return Object.assign(Later, {load});
};
const records = () => import("./views/records.mjs");
const lists = () => import("./views/lists.mjs"), dialogs = () => import("./views/dialogs.mjs");
const RunView = later(() => import("./views/run_view.mjs"), "RunView");
const ActDialog = later(dialogs, "ActDialog"), Help = later(dialogs, "Help");
// The views by the name in their address, with their labels in the navigation.
const VIEWS = new Map([
  ["", ["Trees", TreeTable]],
  ["inbox", ["Inbox", later(() => import("./views/inbox.mjs"), "Inbox")]],
  ["agents", ["Teams and agents", later(lists, "AgentLists")]],
  ["schedules", ["Schedules", later(lists, "Schedules")]],
  ["safety", ["Safety", later(lists, "Passages")]],
  ["boards", ["Boards", later(records, "Boards")]],
  ["kernels", ["Kernels and keys", later(records, "Kernels")]],
]);
const OVER = "The token is not valid, or its time is over.";

const route = () => location.hash.replace(/^#\/?/, "").split("/").map(unescaped);

/** A part of the page that can fail without the rest: agents and servers may send what it does not expect. */
function Guard({tab, children}) {
  const [error, retry] = useErrorBoundary();
  useEffect(() => void (error && retry()), [tab]); // Another part of the view may be drawn.
  return error ? html`<p class="trouble page" role="alert">This view cannot be drawn: ${brief(error?.message ?? error, 200)}.
    ${button("Try again", retry, "quiet")}</p>` : children;
}

function App({token, reason}) {
  const [locked, setLocked] = useState(token ? "" : reason);
  const [about, setAbout] = useState({read_only: false, kernel: true});
  const [connection, setConnection] = useState({kind: "connecting"}), [goneSince, setGoneSince] = useState("");
  const [ended, setEnded] = useState(null), [dialog, setDialog] = useState(null);
  const api = useMemo(() => new Api(token, () => setLocked(OVER)), [token]);
  const rows = useMemo(() => new Rows(), [api, ended]);
  const [[view = "", id = "", tab = ""], setRoute] = useState(route);

  useEffect(() => {
    if (!locked) api.get("about.json").then((answer) => setAbout({...about, ...answer}), () => {});
  }, [api]);
  useEffect(() => {
    if (locked) return;
    const end = new AbortController();
    const onState = (state) => {
      const {kind} = state;
      if (kind === "refused") return setLocked(OVER);
      if (kind === "gone") setGoneSince((since) => since || new Date().toISOString());
      if (kind === "live") {
        setGoneSince("");
        if (ended === null && rows.isComplete && !rows.nodes.size) setEnded(true); // Nothing is active: show what is recorded.
      }
      setConnection((old) => (old.kind === kind && old.retryAt === state.retryAt && old.isLeader === state.isLeader ? old : state));
    };
    share(api, rows, {ended: Boolean(ended), signal: end.signal, onState});
    return () => end.abort();
  }, [api, rows, locked]);
  useIdleLogout(api, locked ? 0 : about.idle_minutes, setLocked);
  useListener("hashchange", () => setRoute(route()));
  useListener("keydown", (event) => event.key === "?" && !isTyping(event) && setDialog({help: true}));
  useEffect(() => setDialog(null), [view, id]); // A link in a receipt leads to another view.

  if (locked) return html`<${Locked} reason=${locked} />`;
  const page = {
    api, rows, about, ended, setEnded,
    act: (act, row) => {
      if (!about.read_only && (row || act.url)) setDialog({act, row, key: Date.now()});
    },
  };
  const View = view === "run" ? RunView : (VIEWS.get(view) ?? VIEWS.get(""))[1];
  const close = () => setDialog((now) => (now === dialog ? null : now));
  return html`
    <header class="top"><${Navigation} page=${page} view=${view} />
      <span class="folder"><bdi>${about.dir ?? ""}</bdi></span>
      <${Connection} state=${connection} about=${about} />
      <button type="button" class="quiet" aria-label="Keys" title="Keys ( ? )" onClick=${() => setDialog({help: true})}>?</button></header>
    <${Gone} state=${connection} since=${goneSince} />
    <main><${Guard} key=${`${view}/${id}`} tab=${tab}><${View} page=${page} id=${id} tab=${tab} /><//></main>
    ${dialog?.act && html`<${ActDialog} key=${dialog.key} page=${page} act=${dialog.act} row=${dialog.row} onClose=${close} />`}
    ${dialog?.help && html`<${Help} onClose=${close} />`}`;
}

function Navigation({page, view}) {
  useRows(page.rows);
  const waiting = waitingCount(page.rows);
  document.title = `${waiting ? `(${waiting}) ` : ""}ramet`;
  return html`<nav aria-label="Views">${[...VIEWS].map(([name, [label]]) => html`<a href=${`#/${name}`}
    aria-current=${view === name ? "page" : null}>${label}${name === "inbox" && waiting ? html` <span class="badge">${waiting}</span>` : ""}</a>`)}</nav>`;
}

// A new link in a tab with the page does not load it.
addEventListener("hashchange", async () => isLink() && (await takeToken(), location.reload()));
const root = document.getElementById("app");
const {token, reason} = await takeToken();
root.replaceChildren(); // The frame of the page, which was painted until now.
render(html`<${App} token=${token} reason=${reason} />`, root);
performance.mark("drawn"); // For `python -m benchmarks ui`.
setTimeout(() => [RunView, Help, ...Array.from(VIEWS.values(), ([, View]) => View)].forEach((each) => each.load?.().catch(() => {})), 1000);
