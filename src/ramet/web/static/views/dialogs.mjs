// Dialogs: an act asks once, names what it will end or change, and shows the receipt; the list of keys.
import {button, code, grouped, html, isInterrupted, list, plural, shownPath, spaced, trouble, typed, useEffect, useMemo, useRef,
  useState, words} from "./words.mjs";
import {newKey, runPath} from "../data/api.mjs";
import {limitsOf} from "../tree/limits.mjs";

const NAMED = 12; //: paths that a dialog or a receipt lists; of more it says the number

const paths = (all, count = all.length) => list([...all.slice(0, NAMED), ...(count > NAMED ? [`and ${grouped(count - NAMED)} more`] : [])], (each) => words(each, 300));
const ended = (label, all) => all?.length > 0 && html`<p>${label} ${plural(all.length, "run")}:</p>${paths(all)}`;
const below = (what) => (rows, row) => {
  const {rows: open, count} = rows.below(row.id, (each) => !each.is_over, NAMED - 1);
  return html`<p>${what} ${count ? `${plural(count + 1, "run")}: this one and all below it.` : "this run."}</p>${paths([row, ...open].map(shownPath), count + 1)}`;
};
/** Say one sentence, whatever is asked. */
export const says = (text) => () => html`<p>${text}</p>`;
const REASON = {name: "reason", label: "Reason (recorded)"};

// By name, which is also the path unless there is a `path`; without `body` the fields are sent, without fields nothing.
const ACTS = {
  __proto__: null,
  stop: {
    title: "Stop", isDangerous: true, about: below("This ends"), fields: [REASON],
    receipt: ({stopped, left}) => html`${ended("Ended", stopped)}
      ${left?.length > 0 && html`<p class="trouble">These calls could not be ended; they go on in threads of the host:</p>${paths(left)}`}
      ${!stopped?.length && !left?.length && "Nothing was left to end."}`,
  },
  pause: {
    title: "Pause", about: below("Nothing new begins in"),
    fields: [{name: "now", label: "Also cut what is under way", type: "checkbox"}, REASON],
    receipt: ({paused, working}) => html`${ended("Paused", paused)}${ended("Still working until a step ends:", working)}`,
  },
  resume: {title: "Resume", about: (_, row) => html`<p>${row && isInterrupted(row) ? "A kernel is started, which continues the whole tree of this run." : "The run goes on, and so do the runs below it that are not paused themselves."}</p>`, receipt: says("It goes on.")},
  message: {
    title: "Message", button: "Send", path: "mail", about: says("The run reads the message at its next step."),
    fields: [{name: "text", label: "Message", type: "textarea", required: true}], receipt: ({mail}) => words(mail, 400),
  },
  raise: {
    title: "Raise limits", button: "Raise", path: "limits",
    body: (values) => ({add: Object.fromEntries(Object.entries(values).filter(([, value]) => value).map(([name, value]) => [name, Number(value)]))}),
    about: (_, row) => html`<p>Add to limits of this run; what waits there goes on.</p>${list(limitsOf(row), (each) => each.words)}`,
    fields: (row) => (limitsOf(row)[0] ? limitsOf(row).map((each) => each.name).filter((each) => each !== "seconds" && each !== "time") : ["usd", "tokens", "model_calls"])
      .map((name) => ({name, label: `Add ${spaced(name)}`, type: "number"})),
    receipt: ({limits}) => html`<p>The limits are now:</p>${code(limits)}`,
  },
  keep: {
    title: "Keep", body: ({off}) => ({on: !off}), about: says("The tree of this run stays in the journal, whatever its age."),
    fields: [{name: "off", label: "No longer keep it", type: "checkbox"}],
    receipt: ({kept}) => `The tree is ${kept ? "kept" : "no longer kept"}.`,
  },
};

const NEEDS_KERNEL = new Set([ACTS.stop, ACTS.pause, ACTS.message, ACTS.raise]); //: acts that an interrupted run cannot take

function Field({name, label, type = "text", required, values, set}) {
  const change = (value) => set({...values, [name]: value});
  if (type === "checkbox") {
    return html`<label class="check"><input type=${type} checked=${Boolean(values[name])} onChange=${(event) => change(event.target.checked)} /> ${label}</label>`;
  }
  const tag = type === "textarea" ? type : "input";
  return html`<label>${label}<${tag} type=${tag === "input" ? type : null} rows="4" min="0" step="any" dir="auto" required=${required}
    value=${values[name] ?? ""} onInput=${typed(change)} /></label>`;
}

/** Close the dialog that a button is in; the focus goes back to where it was. */
const close = (event) => event.currentTarget.closest("dialog").close();

/** A modal dialog: `onClose` is called when it closes, by a button or by Escape. */
function Dialog({title, onClose, children}) {
  const box = useRef();
  useEffect(() => box.current.showModal(), []);
  return html`<dialog ref=${box} aria-labelledby="dialog-title" onClose=${onClose}><h2 id="dialog-title">${title}</h2>${children}</dialog>`;
}

const done = () => html`<div class="buttons"><button type="button" autofocus onClick=${close}>Close</button></div>`;

/** Ask for an act on `row`: one of ACTS by its name, or another one in that form with a `url` or a `path`. */
export function ActDialog({page, act: name, row, onClose}) {
  const [isFirst, resumeFirst] = useState(false), act = isFirst ? ACTS.resume : ACTS[name] ?? name;
  const [values, set] = useState({}), [{kind, answer, error}, setState] = useState({kind: "asks"});
  const key = useMemo(newKey, [values]); // After a lost answer, the same act is not done again.
  const fields = (typeof act.fields === "function" ? act.fields(row) : act.fields) ?? [];
  const send = async (event) => {
    event.preventDefault();
    setState({kind: "sends"});
    try {
      const body = act.body ? act.body(values) : fields.length ? values : undefined;
      setState({kind: "sent", answer: (await page.api.post(act.url ?? runPath(row.id, `/${act.path ?? (isFirst ? "resume" : name)}`), body, {key})) ?? {}});
    } catch (problem) {
      setState({kind: "failed", error: problem});
    }
  };
  return html`<${Dialog} title=${act.title} onClose=${onClose}>
    ${row && html`<p class="of">${words(shownPath(row), 400)}</p>`}
    ${NEEDS_KERNEL.has(act) && row && isInterrupted(row) ? html`<p>The kernel of this run has ended, and nothing of the run is at work:
        no process, and no request.${act === ACTS.stop && " So there is nothing to stop, unless it is resumed."} Resume it first.</p>
        <div class="buttons">${button("Close", close)}${button("Resume it first", () => resumeFirst(true), "main")}</div>`
      : kind === "sent" ? html`<div class="receipt" role="status">${act.receipt(answer)}</div>${done()}`
      : html`<form onSubmit=${send}>${act.about(page.rows, row)}
        ${fields.map((field) => html`<${Field} key=${field.name} ...${field} values=${values} set=${set} />`)}${trouble(error)}
        <div class="buttons">${button("Cancel", close)}
          <button type="submit" class=${act.isDangerous ? "danger" : "main"} disabled=${kind === "sends"}>${kind === "sends" ? "Waiting for the receipt…" : act.button ?? act.title}</button></div></form>`}
  <//>`;
}

const KEYS = [
  ["↑ ↓ PgUp PgDn Home End", "select a line"], ["→ ←", "show or hide the runs below; go to the run above"],
  ["*", "show all runs below the lines in the table"], ["Enter", "open the run"], ["/", "filter"], ["s", "stop the run and all below it"],
  ["p", "pause, or resume"], ["m", "message"], ["r", "raise limits"], ["Esc", "close a dialog"], ["?", "this list"],
];

export const Help = ({onClose}) => html`<${Dialog} title="Keys" onClose=${onClose}>
  <dl class="keys">${KEYS.map(([key, what]) => html`<dt><kbd>${key}</kbd></dt><dd>${what}</dd>`)}</dl>
  <p>Each act asks first and shows the receipt. A run says “ended” only when its processes are gone.</p>${done()}<//>`;
