// Views that are opened rarely: what a run changed in its own copy of a repository, boards, kernels, and what keys open.
import {runPath} from "../data/api.mjs";
import {Loaded} from "./lists.mjs";
import {button, code, dateAndTime, Folded, html, none, runLink, soft, table, trouble, useGet, words} from "./words.mjs";

/** What `draw` makes of an answer that is asked for once, and again by a button. */
function Once({page, path, draw}) {
  const {value, error, reload} = useGet(page, path);
  return error ? (error.status === 410 ? none(words(error.detail, 1000)) : trouble(error, reload)) : value ? draw(value, reload) : none("Reading…");
}

const changes = ({base, files, files_left_out: more, patch, is_cut, repositories_left_out: inner}, reload) => html`<section>
  <h2>Changed since commit ${base.slice(0, 12)}</h2>${button("Compare again", reload, "quiet")}
  ${files.length ? table(["File", "Change", "Lines"], files.map((each) => [words(each.path), each.change,
    each.lines_added === null ? "binary or large" : `+${each.lines_added} −${each.lines_removed}`])) : none("Nothing.")}
  ${more > 0 && none(`${more} more.`)}${inner[0] && html`<p>Repositories inside it are not compared: ${words(inner.join(", "), 1000)}</p>`}
  ${patch && html`<h2>Patch ${is_cut && soft("(its beginning)")}</h2>${code(patch, 20_000)}`}</section>`;

export const Changes = ({page, id}) => html`<${Once} page=${page} path=${runPath(id, "/diff")} draw=${changes} />`;

const tasks = ({tasks: all}) => table(["", "Task", "Status", "Owner", "Waits for"], all.map((each) => [each.id,
  each.description ? html`<${Folded} summary=${words(each.subject)} draw=${() => code(each.description)} />` : words(each.subject), each.status.replace("_", " "),
  each.owner && runLink(each.owner, each.owner_path || each.owner), each.open_blockers.join(", ")]));

export const Boards = ({page}) => html`<div class="page"><${Loaded} page=${page} path="/v1/boards?limit=1000" name="boards" title="Boards" draw=${(all) => all.map((each) => html`<${Folded}
  key=${each.name} kind="card" summary=${html`<b>${words(each.name)}</b> ${soft(each.error ? words(each.error) : `${each.pending} pending, ${each.in_progress} in progress, ${each.completed} completed`)}`}
  draw=${() => html`<${Once} page=${page} path=${`/v1/boards/${encodeURIComponent(each.name)}`} draw=${tasks} />`} />`)} /></div>`;

export const Kernels = ({page}) => html`<div class="page">
  <${Loaded} page=${page} name="kernels" title="Kernels" empty="No kernel is at work." draw=${(all) => table(["Kernel", "Lease", "Started", "Trees", "Runs at work", "Address"],
    all.map((each) => [words(each.name), each.is_alive ? "held" : "lost", dateAndTime(each.started), each.trees, each.runs, words(each.address)]))} />
  <${Loaded} page=${page} path="/v1/keys?limit=1000" name="keys" title="Keys" draw=${(all) => table(["Opens", "Key of", "Rights", "Until", "Made by"],
    all.map((each) => [words(each.agent || each.team || "everything"), words(each.key || each.kind), each.rights.join(", ") || "all", dateAndTime(each.until), words(each.made_by)]))} /></div>`;
