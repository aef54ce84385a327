// An act on a run: asks once, names what it will end or change, sends it, and shows the receipt.
import {html, useEffect, useMemo, useRef, useState} from "../html.mjs";
import {newKey, runPath} from "../data/api.mjs";
import {plural} from "../data/format.mjs";
import {limitsOf} from "../tree/limits.mjs";
import {shownPath} from "../tree/state.mjs";
import {LongWords, Trouble, Words} from "./words.mjs";

const NAMED = 12; //: paths that a dialog or a receipt lists; of more it says the number

const isOpenRow = (row) => !row.is_over;

function Paths({paths, count = paths.length}) {
  return html`<ul class="paths">${paths.slice(0, NAMED).map((each) => html`<li><${Words} text=${each} most=${300} /></li>`)}
    ${count > NAMED && html`<li>and ${(count - NAMED).toLocaleString("en")} more</li>`}</ul>`;
}

function Below({rows, row, what}) {
  const below = rows.below(row.id, isOpenRow, NAMED - 1);
  return html`<p>${what} ${below.count ? `${plural(below.count + 1, "run")}: this one and all below it.` : "this run."}</p>
    <${Paths} paths=${[shownPath(row), ...below.rows.map(shownPath)]} count=${below.count + 1} />`;
}

const Receipt = {
  paths: (label, list) => list?.length > 0 && html`<p>${label} ${plural(list.length, "run")}:</p><${Paths} paths=${list} />`,
};

// By name: title, label of the button, what it says, fields, the request, and the receipt.
export const ACTS = {
  stop: {
    title: "Stop", button: "Stop", isDangerous: true, path: "/stop", body: ({reason}) => ({reason: reason ?? ""}),
    about: (rows, row) => html`<${Below} rows=${rows} row=${row} what="This ends" />`,
    fields: [{name: "reason", label: "Reason (recorded)"}],
    receipt: (answer) => html`${Receipt.paths("Ended", answer.stopped)}
      ${answer.left?.length > 0 && html`<p class="trouble">These calls could not be ended; they go on in threads of the host:</p><${Paths} paths=${answer.left} />`}
      ${!answer.stopped?.length && !answer.left?.length && html`<p>Nothing was left to end.</p>`}`,
  },
  pause: {
    title: "Pause", button: "Pause", path: "/pause",
    body: ({reason, now}) => ({reason: reason ?? "", now: Boolean(now)}),
    about: (rows, row) => html`<${Below} rows=${rows} row=${row} what="Nothing new begins in" />`,
    fields: [{name: "now", label: "Also cut what is under way", type: "checkbox"}, {name: "reason", label: "Reason (recorded)"}],
    receipt: (answer) => html`${Receipt.paths("Paused", answer.paused)}${Receipt.paths("Still working until a step ends:", answer.working)}`,
  },
  resume: {
    title: "Resume", button: "Resume", path: "/resume", body: () => undefined,
    about: () => html`<p>The run goes on, and so do the runs below it that are not paused themselves.</p>`, fields: [],
    receipt: () => html`<p>It goes on.</p>`,
  },
  message: {
    title: "Message", button: "Send", path: "/mail", body: ({text}) => ({text}),
    about: () => html`<p>The run reads the message at its next step.</p>`,
    fields: [{name: "text", label: "Message", type: "textarea", isRequired: true}],
    receipt: (answer) => html`<p><${Words} text=${answer.mail} most=${400} /></p>`,
  },
  raise: {
    title: "Raise limits", button: "Raise", path: "/limits",
    body: (values) => ({add: Object.fromEntries(Object.entries(values).filter(([, value]) => value).map(([name, value]) => [name, Number(value)]))}),
    about: (rows, row) => html`<p>Add to limits of this run; what waits there goes on.</p>
      <ul class="paths">${limitsOf(row).map((each) => html`<li>${each.words}</li>`)}</ul>`,
    fields: (row) => (limitsOf(row).length ? limitsOf(row).map((each) => each.name).filter((each) => each !== "seconds" && each !== "time") : ["usd", "tokens", "model_calls"])
      .map((name) => ({name, label: `Add ${name.replaceAll("_", " ")}`, type: "number"})),
    receipt: (answer) => html`<p>The limits are now:</p><${LongWords} text=${answer.limits} isCode />`,
  },
  keep: {
    title: "Keep", button: "Keep", path: "/keep", body: ({off}) => ({on: !off}),
    about: () => html`<p>The tree of this run stays in the journal, whatever its age.</p>`,
    fields: [{name: "off", label: "No longer keep it", type: "checkbox"}],
    receipt: (answer) => html`<p>${answer.kept ? "The tree is kept." : "The tree is no longer kept."}</p>`,
  },
};

function Field({field, values, set}) {
  const {name, label, type = "text", isRequired} = field;
  const shared = {name, required: isRequired, onInput: (event) => set({...values, [name]: event.target.value})};
  if (type === "checkbox") {
    return html`<label class="check"><input type="checkbox" checked=${Boolean(values[name])}
      onChange=${(event) => set({...values, [name]: event.target.checked})} /> ${label}</label>`;
  }
  return html`<label>${label}${type === "textarea"
    ? html`<textarea rows="4" dir="auto" value=${values[name] ?? ""} ...${shared}></textarea>`
    : html`<input type=${type} min=${type === "number" ? 0 : undefined} step=${type === "number" ? "any" : undefined} dir="auto" value=${values[name] ?? ""} ...${shared} />`}</label>`;
}

/** Close the dialog that a button is in; the focus goes back to where it was. */
export const close = (event) => event.currentTarget.closest("dialog").close();

/** A modal dialog: `onClose` is called when it closes, by a button or by Escape. */
export function Dialog({title, onClose, children}) {
  const box = useRef();
  useEffect(() => {
    box.current.showModal();
  }, []);
  return html`<dialog ref=${box} aria-labelledby="dialog-title" onClose=${onClose}>
    <h2 id="dialog-title">${title}</h2>${children}</dialog>`;
}

/** Ask for an act on `row`: one of ACTS by its name, or another one in that form. */
export function ActDialog({page, act: name, row, onClose}) {
  const act = ACTS[name] ?? name;
  const [values, set] = useState(act.values ?? {}), [state, setState] = useState({kind: "asks"});
  const key = useMemo(newKey, [values]); // After a lost answer, the same act is not done again.
  const fields = typeof act.fields === "function" ? act.fields(row) : act.fields;
  const send = async (event) => {
    event.preventDefault();
    setState({kind: "sends"});
    try {
      const path = act.url ?? runPath(row.id, act.path);
      setState({kind: "sent", answer: (await page.api.post(path, act.body(values), {key})) ?? {}});
    } catch (error) {
      setState({kind: "failed", error});
    }
  };
  return html`<${Dialog} title=${act.title} onClose=${onClose}>
    ${row && html`<p class="of"><${Words} text=${shownPath(row)} most=${400} /></p>`}
    ${state.kind === "sent"
      ? html`<div class="receipt" role="status">${act.receipt(state.answer)}</div>
        <div class="buttons"><button type="button" autofocus onClick=${close}>Close</button></div>`
      : html`<form onSubmit=${send}>
        ${act.about?.(page.rows, row)}
        ${fields.map((field) => html`<${Field} key=${field.name} field=${field} values=${values} set=${set} />`)}
        <${Trouble} error=${state.error} />
        <div class="buttons">
          <button type="button" onClick=${close}>Cancel</button>
          <button type="submit" class=${act.isDangerous ? "danger" : "main"} disabled=${state.kind === "sends"}>${state.kind === "sends" ? "Waiting for the receipt…" : act.button}</button>
        </div>
      </form>`}
  <//>`;
}
