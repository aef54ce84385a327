// Views that are opened rarely: what a run changed in its own copy of a repository.
import {html} from "../html.mjs";
import {runPath} from "../data/api.mjs";
import {plural} from "../data/format.mjs";
import {useLoaded} from "./hooks.mjs";
import {button, code, none, soft, table, trouble, words} from "./words.mjs";

export function Changes({page, id}) {
  const {value, error, reload} = useLoaded((signal) => page.api.get(runPath(id, "/diff"), {signal}), [id]);
  if (!value) return error?.status === 410 ? none(words(error.detail, 1000)) : trouble(error, reload) ?? none("Comparing…");
  const {base, files, files_left_out: more, patch, is_cut, repositories_left_out: inner} = value;
  return html`<section><h2>Changed since commit <code>${base.slice(0, 12)}</code></h2>${button("Compare again", reload, "quiet")}${trouble(error)}
    ${files.length ? table(["File", "Change", "Lines"], files.map((each) => [words(each.path), each.change,
      each.lines_added === null ? "binary or large" : `+${each.lines_added} −${each.lines_removed}`])) : none("Nothing.")}
    ${more > 0 && none(`${plural(more, "more file")}.`)}${inner.length > 0 && html`<p>Repositories inside it are not compared: ${words(inner.join(", "), 1000)}</p>`}
    ${patch && html`<h2>Patch ${is_cut && soft("(its beginning)")}</h2>${code(patch, 20_000)}`}</section>`;
}
