"""The page's modules without views, in a real browser but without a server: parser, rows, outline, transcript, text."""

from __future__ import annotations

import bisect
import itertools
from typing import TYPE_CHECKING, Any

import pytest_asyncio

from ramet.web.script_text import script_tokens
from ramet.web.static_files import FOLDER, static_files

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, Page, Route

ORIGIN = "http://page.test"
_UNCOUNTED = frozenset({",", ";", "(", ")"})
#: Parse templates as the page does, with their values' numbers as values, and join spaces outside of `pre`.
DRAWN = """async (templates) => {
  const {default: htm} = await import("/served/vendor/htm.mjs");
  const joined = (child, type) => (typeof child === "string" && type !== "pre" ? child.replace(/\\s+/g, " ") : child);
  const element = (type, props, ...children) => [type, props, children.map((each) => joined(each, type))];
  return templates.map((pieces) => JSON.stringify(htm.apply(element, [pieces, ...pieces.slice(1).keys()])));
}"""


@pytest_asyncio.fixture(loop_scope="session")
async def modules(context: BrowserContext) -> Page:
    """Return an empty page that may import the page's files."""

    async def answer(route: Route) -> None:
        file = static_files().get(route.request.url.removeprefix(f"{ORIGIN}/"))
        if file is None:
            await route.fulfill(body="<!doctype html><title>empty</title>", content_type="text/html")
        else:
            await route.fulfill(body=file.content, content_type=file.media_type)

    await context.route(f"{ORIGIN}/**", answer)
    page = await context.new_page()
    await page.goto(f"{ORIGIN}/empty")
    return page


async def test_a_browser_finds_the_same_code_in_scripts_as_written_and_as_served(context: BrowserContext) -> None:
    """The places where a debugger can stop, such as statements and calls, are at the same tokens, all but some signs.

    Templates give the same elements, attributes and texts, but for the spaces that HTML joins to one.
    """
    texts = {f"{ORIGIN}/served/{name}": file.content.decode() for name, file in static_files().items()}
    texts |= {f"{ORIGIN}/written/{name}": (FOLDER / name).read_text() for name in static_files()}

    async def answer(route: Route) -> None:
        media_type = "text/javascript" if route.request.url.endswith(".mjs") else "text/html"
        await route.fulfill(body=texts.get(route.request.url, '<div id="app">'), content_type=media_type)

    await context.route(f"{ORIGIN}/**", answer)
    page = await context.new_page()
    await page.goto(f"{ORIGIN}/empty")
    devtools = await context.new_cdp_session(page)
    ids = dict[str, str]()
    devtools.on("Debugger.scriptParsed", lambda script: ids.update({script["url"]: script["scriptId"]}))
    await devtools.send("Debugger.enable")

    async def places(url: str) -> list[int]:
        await devtools.send("Runtime.evaluate", {"expression": f"import({url!r})", "awaitPromise": True})
        start = {"scriptId": ids[url], "lineNumber": 0, "columnNumber": 0}
        found = await devtools.send("Debugger.getPossibleBreakpoints", {"start": start})
        return _tokens_at(texts[url], [(each["lineNumber"], each["columnNumber"]) for each in found["locations"]])

    for name in (each for each in static_files() if each.endswith(".mjs")):
        served = await places(f"{ORIGIN}/served/{name}")
        assert served
        assert served == await places(f"{ORIGIN}/written/{name}"), name
        drawn = [
            await page.evaluate(DRAWN, _templates(texts[f"{ORIGIN}/{way}/{name}"])) for way in ("served", "written")
        ]
        assert drawn[0] == drawn[1], name


def _tokens_at(script: str, places: list[tuple[int, int]]) -> list[int]:
    """Return the numbers of the tokens that are at, or next after, places by line and column.

    Spaces and the signs that a served script has fewer of are not counted.
    """
    tokens = list(script_tokens(script))
    ends = list(itertools.accumulate(len(each.text) for each in tokens))
    starts = [
        end - len(each.text)
        for each, end in zip(tokens, ends, strict=True)
        if each.kind != "space" and each.text not in _UNCOUNTED
    ]
    lines = [0, *itertools.accumulate(len(each) + 1 for each in script.split("\n"))]
    return sorted({bisect.bisect_left(starts, lines[line] + column) for line, column in places})


def _templates(script: str) -> list[list[str]]:
    """Return the templates of a script, each as its pieces between values."""
    found, unfinished = list[list[str]](), list[list[str]]()
    for kind, text in script_tokens(script):
        if kind not in ("template", "html"):
            continue
        if text[0] == "`":
            unfinished.append([])
        unfinished[-1].append(text[1:].removesuffix("`").removesuffix("${"))
        if text[-1] == "`":
            found.append(unfinished.pop())
    return found


async def test_events_are_parsed_from_pieces_of_any_size(modules: Page) -> None:
    """Pieces of every size give the same events; heartbeats are none, and a line of 10 MB does not take a second."""
    result: dict[str, Any] = await modules.evaluate("""async () => {
      const {EventParser} = await import("/data/sse.mjs");
      const text = ": heartbeat\\n\\nid: 7\\r\\nevent: changes\\r\\ndata: {\\"a\\":\\r\\ndata: 1}\\r\\n\\r\\n"
        + "event: done\\ndata: \\n\\n";
      const all = [];
      for (let size = 1; size <= text.length; size += 1) {
        const parser = new EventParser(), events = [];
        for (let at = 0; at < text.length; at += size) events.push(...parser.push(text.slice(at, at + size)));
        all.push(JSON.stringify(events));
      }
      const parser = new EventParser(), start = performance.now();
      parser.push("data: ");
      for (let piece = 0; piece < 160; piece += 1) parser.push("x".repeat(65536));
      const [long] = parser.push("\\n\\n");
      return {distinct: [...new Set(all)], ms: performance.now() - start, length: long.data.length};
    }""")

    assert result["distinct"] == [
        '[{"type":"changes","id":"7","data":"{\\"a\\":\\n1}"},{"type":"done","id":"","data":""}]'
    ]
    assert result["length"] == 160 * 65536
    assert result["ms"] < 1_000


async def test_rows_count_what_is_not_over_and_drop_what_is_gone(modules: Page) -> None:
    """Counts of open runs hold after ends, removals, early children, and a new picture after a lost cursor."""
    steps: list[dict[str, Any]] = await modules.evaluate("""async () => {
      const {Rows} = await import("/data/rows.mjs");
      const rows = new Rows(), seen = [];
      const row = (id, parent, is_over = false) => ({id, root: "a", parent, path: id, state: "running", is_over});
      const look = () => {
        for (const node of rows.nodes.values()) {
          const open = rows.below(node.id, (each) => !each.is_over).count;
          if (open !== node.live) throw new Error(`${node.id}: ${node.live}, not ${open}`);
        }
        const roots = rows.roots.map((each) => each.id), live = rows.nodes.get("a")?.live;
        seen.push({roots, live, size: rows.nodes.size, complete: rows.isComplete});
      };
      rows.apply({runs: [row("c", "b"), row("a", null)], complete: false}, "1"); look();
      rows.apply({runs: [row("b", "a")]}, "2"); look();
      rows.apply({runs: [row("c", "b", true), row("d", "a")]}, "3"); look();
      rows.apply({runs: [row("c", "b", false)]}, "4"); look();
      rows.apply({runs: [row("a", null)], complete: false, reset: true}); look();
      rows.apply({runs: [row("d", "a")]}, "9"); look();
      rows.apply({removed: ["a"]}, "10"); look();
      return seen;
    }""")

    assert steps == [
        {"roots": ["c", "a"], "live": 0, "size": 2, "complete": False},
        {"roots": ["a"], "live": 2, "size": 3, "complete": True},
        {"roots": ["a"], "live": 2, "size": 4, "complete": True},
        {"roots": ["a"], "live": 3, "size": 4, "complete": True},
        {"roots": ["a"], "live": 3, "size": 4, "complete": False},
        {"roots": ["a"], "live": 1, "size": 2, "complete": True},
        {"roots": [], "live": None, "size": 0, "complete": True},
    ]


async def test_a_tab_that_is_open_for_months_holds_a_bounded_number_of_ended_trees(modules: Page) -> None:
    """Beyond a number of runs, the trees that ended first are dropped and counted; trees with open runs stay."""
    result: dict[str, Any] = await modules.evaluate("""async () => {
      const {Rows} = await import("/data/rows.mjs");
      const rows = new Rows(100), at = (hour) => new Date(3.6e6 * hour).toISOString();
      const row = (id, root, is_over, hour) => ({id, root, parent: id === root ? null : root, path: id, is_over,
        state: is_over ? "completed" : "running", ended: is_over ? at(hour) : undefined});
      rows.apply({runs: [row("open", "open", false), row("child", "open", true, 0)]});
      for (let tree = 0; tree < 1000; tree += 1) {
        rows.apply({runs: [row(`t${tree}`, `t${tree}`, false), row(`c${tree}`, `t${tree}`, true, tree)]});
        rows.apply({runs: [row(`t${tree}`, `t${tree}`, true, tree)]});
      }
      const left = rows.roots.map((each) => each.id);
      return {size: rows.nodes.size, first: left[0], last: left.at(-1), dropped: rows.dropped + left.length - 1};
    }""")

    assert result["size"] <= 100
    assert (result["first"], result["last"], result["dropped"]) == ("open", "t999", 1000)


async def test_the_outline_folds_filters_and_sorts(modules: Page) -> None:
    """Paths to open runs are unfolded, ended siblings are one line, a filter shows the way to what fits."""
    result: dict[str, Any] = await modules.evaluate("""async () => {
      const {Rows} = await import("/data/rows.mjs");
      const {comparisonOf, filterOf, outline} = await import("/tree/outline.mjs");
      const rows = new Rows();
      const row = (id, parent, is_over, usd = 0) => ({id, root: "main", parent, path: parent ? `${parent}/${id}` : id,
        agent: "worker", state: is_over ? "completed" : "running", is_over, usage_subtree: {usd}});
      const ended = Array.from({length: 7}, (_, number) => row(`e${number}`, "main", true));
      rows.apply({runs: [row("main", null, false), row("a", "main", false, 1), row("aa", "a", true),
        row("b", "main", false, 5), row("bb", "b", false), ...ended]});
      const ids = (options) => outline(rows, options).map((each) => "-".repeat(each.depth) + each.id);
      const past = new Rows();
      const old = (id, root, parent, born) => ({...row(id, parent, true), root, born});
      past.apply({runs: [old("x", "x", null, "2026-01-01T00:00:00Z"), old("xx", "x", "x"),
        old("y", "y", null, "2026-01-02T00:00:00Z"), old("yy", "y", "y"), old("yyy", "y", "yy")]});
      const past_ids = (options) => outline(past, options).map((each) => each.id);
      return {
        past: past_ids(), folded: past_ids({folds: new Map([["y", false]])}),
        usual: ids(), group: ids({folds: new Map([["ended main", true], ["b", false]])}),
        found: ids({fits: filterOf({words: "BB worker"})}), none: ids({fits: filterOf({words: "nothing"})}),
        sorted: ids({compare: comparisonOf("usd", true)}),
      };
    }""")

    assert result["past"] == ["x", "y", "yy", "yyy"]  # Nothing is at work: the newest tree is unfolded.
    assert result["folded"] == ["x", "y"]
    assert result["usual"] == ["main", "-a", "-b", "--bb", "-ended main"]
    assert result["group"] == ["main", "-a", "-b", "-ended main", *(f"-e{number}" for number in range(7))]
    assert result["found"] == ["main", "-b", "--bb"]
    assert result["none"] == []
    assert result["sorted"] == ["main", "-b", "--bb", "-a", "-ended main"]


async def test_a_transcript_joins_calls_with_their_answers_at_every_event(modules: Page) -> None:
    """A call is one item with arguments and result; a part of a reply gives way to its message, at any event too."""
    result: dict[str, Any] = await modules.evaluate("""async () => {
      const {transcriptOf} = await import("/data/transcript.mjs");
      const events = [
        {type: "message_recorded", seq: 1, message: {type: "human", content: "Why?"}},
        {type: "text_delta", seq: 0, step_id: "s", text: "I "},
        {type: "text_delta", seq: 0, step_id: "s", text: "look"},
        {type: "message_recorded", seq: 2, step_id: "s", message: {type: "ai",
          content: [{type: "thinking", thinking: "hm"}, {type: "text", text: "I look"}],
          tool_calls: [{id: "c1", name: "Read", args: {path: "a"}}]}},
        {type: "tool_started", seq: 3, call_id: "c1", tool: "Read", step_id: "s", args: {path: "a"}},
        {type: "tool_ended", seq: 4, call_id: "c1", tool: "Read", status: "ok", preview: "text", elapsed_ms: 5},
        {type: "message_recorded", seq: 5, message: {type: "tool", tool_call_id: "c1", content: "whole text"}},
        {type: "clamped", seq: 6, field: "usd", asked: 9, given: 2},
        {type: "endpoint_asked", seq: 7, host: "h", port: 1, allowed: false, reason: "r"},
        {type: "of_the_future", seq: 8}, {type: "run_ended", seq: 9, result: {status: "completed", value: "done"}},
      ];
      const text = (item) =>
        item.blocks?.map((block) => block.text).join("|") ?? item.result?.[0]?.text ?? item.text ?? "";
      const shape = (end) => transcriptOf(events.slice(0, end)).items.map((each) =>
        [each.kind, each.role ?? each.tool ?? "", text(each)]);
      const {endpoints, rights} = transcriptOf(events);
      return {early: shape(3), whole: shape(99), denied: endpoints.get("h:1").denied, rights: rights.length};
    }""")

    assert result["early"] == [["message", "human", "Why?"], ["message", "ai", "I look"]]
    assert result["whole"] == [
        ["message", "human", "Why?"],
        ["message", "ai", "hm|I look"],
        ["call", "Read", "whole text"],
        ["note", "", "The limit usd was set to 2, not 9: the run above has no more"],
        ["note", "", "Was denied h:1: r"],
        ["end", "", ""],
    ]
    assert (result["denied"], result["rights"]) == (1, 1)


async def test_hostile_words_lose_what_terminals_and_bidirectional_text_would_obey(modules: Page) -> None:
    """Escape sequences go, reordering characters are shown by number, and only the beginning of 10 MB is looked at."""
    result: dict[str, Any] = await modules.evaluate("""async () => {
      const {beginning, brief, clean} = await import("/data/text.mjs");
      const texts = ["\\u001b[31mred\\u001b[0m", "\\u001b]0;title\\u0007x", "\\u001b]8;;http://evil\\u001b\\\\link",
        "\\u009b2Jgone", "a\\u202egpj.exe", "zero\\u200bwidth", "\\ud83d\\udc69\\u200d\\ud83d\\udcbb",
        "bell\\u0007", "line\\r\\nnext", "\\u001b", "</script><b>"];
      const large = "x".repeat(10 * 1024 * 1024), unclosed = "\\u001b[" + ";".repeat(100_000);
      const start = performance.now();
      const {shown, isCut} = beginning(large, 4000), line = brief(large, 50).length, kept = clean(unclosed).length;
      const ms = performance.now() - start;
      const half = beginning("ab\\ud83d\\ude00", 3).shown;
      return {texts: texts.map(clean), ms, half, shown: shown.length, isCut, line, kept};
    }""")

    assert result["texts"] == [
        "red", "x", "link", "gone", "a⟨U+202E⟩gpj.exe", "zero⟨U+200B⟩width", "👩\u200d💻", "bell", "line\nnext", "",
        "</script><b>",
    ]  # fmt: skip
    assert (result["shown"], result["isCut"], result["line"], result["half"]) == (4000, True, 51, "ab")
    assert (result["ms"] < 1_000, result["kept"]) == (True, 100_000)
