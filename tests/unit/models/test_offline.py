"""The offline researcher with the real tools: on the example, and on folders that it has never seen."""

from __future__ import annotations

import asyncio
import os
import pathlib
import re
from collections.abc import Iterator, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from ramet.models.chunks import merge
from ramet.models.research.answer import SIGNATURE
from ramet.models.research.evidence import EvidenceLine, find_writers, group, kind_of, message, parse_lines, severity
from ramet.models.research.model import OfflineResearcher
from ramet.models.research.question import understand
from ramet.models.research.settings import settings_on
from tests.support.driving import READERS, FinishedConversation, run_conversation

ROOT = pathlib.Path(__file__).parents[3]
EXAMPLE = ROOT / "examples/payment-api"
WHY = "Why is the payment API failing?"
CITED = re.compile(r"(?P<path>[\w./-]+\.\w+|[\w./-]+/[\w.-]+):(?P<line>\d+): `?(?P<text>[^`\n]*)`?")


def make(folder: pathlib.Path, files: Mapping[str, str | bytes]) -> pathlib.Path:
    """Make a folder with these files."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def example_files() -> list[pathlib.Path]:
    """Return the files of the example, without those that a run in it left."""
    return [p for p in EXAMPLE.rglob("*") if p.is_file() and not {".ramet", "__pycache__"} & set(p.parts)]


def line_of(folder: pathlib.Path, path: str, text: str) -> str:
    """Return `path:line` of the first line that holds a text."""
    for number, line in enumerate((folder / path).read_text().split("\n"), 1):
        if text in line:
            return f"{path}:{number}"
    raise AssertionError(f"{path} does not hold {text!r}")


def citations(text: str) -> Iterator[tuple[str, int, str]]:
    """Yield each place that an answer cites with its words."""
    for match in CITED.finditer(text):
        yield match["path"], int(match["line"]), match["text"]


def assert_true(conversation: FinishedConversation, folder: pathlib.Path) -> int:
    """Check that every cited line stands where the answer says, and return their number."""
    count = 0
    for path, line, quotation in citations(conversation.text):
        if not (folder / path).is_file():
            continue
        stands = (folder / path).read_text(errors="replace").split("\n")[line - 1].strip().replace("`", "'")
        assert stands.startswith(quotation.strip().removesuffix("…")), f"{path}:{line} is {stands!r}, not {quotation!r}"
        count += 1
    return count


def says_that_rules_answered(conversation: FinishedConversation) -> bool:
    """Return whether the last line says that rules gave the answer."""
    return conversation.text.endswith(SIGNATURE) and "rules" in SIGNATURE and "did not reason" in SIGNATURE


async def test_the_example_is_explained_from_both_files_of_its_cause() -> None:
    """The answer cites the limit that is too low and the code that suffers from it."""
    conversation = await run_conversation(OfflineResearcher(), WHY, EXAMPLE)

    assert line_of(EXAMPLE, "config/payments-live.yaml", "read_timeout_ms: 1500") in conversation.text
    client = "src/payment_api/acquirer_client.py"
    assert line_of(EXAMPLE, client, "no answer from acquirer") in conversation.text
    assert line_of(EXAMPLE, "src/payment_api/connection_pool.py", "no connection within") in conversation.text
    assert line_of(EXAMPLE, "config/payments-sandbox.yaml", "read_timeout_ms: 8000") in conversation.text
    assert "docs/acquirer.md:" in conversation.text
    assert assert_true(conversation, EXAMPLE) >= 15
    assert says_that_rules_answered(conversation)


async def test_a_team_searches_the_example() -> None:
    """The folder is listed, then divided in one turn between two to five scouts, which report their own evidence."""
    conversation = await run_conversation(OfflineResearcher(), WHY, EXAMPLE)

    first, second = [m for m in conversation.messages if isinstance(m, AIMessage)][:2]
    assert {call["name"] for call in first.tool_calls} == {"Glob", "Grep"}
    assert {call["name"] for call in second.tool_calls} == {"Agent"}
    assert 2 <= len(second.tool_calls) <= 5
    for call in second.tool_calls:
        assert set(call["args"]) == {"name", "description", "subagent_type", "prompt"}
        assert call["args"]["subagent_type"] == "explore"
        assert WHY in call["args"]["prompt"]
    assert len([child for child in conversation.children if '["' in child.text]) >= 3
    for child in conversation.children:
        assert says_that_rules_answered(child)


async def test_the_answer_does_not_start_with_false_leads() -> None:
    """Rare complaints do not come first."""
    conversation = await run_conversation(OfflineResearcher(), WHY, EXAMPLE)

    leading = "\n".join(conversation.text.split("\n")[:14])
    assert "no answer from acquirer" in leading
    assert "certificate" not in leading
    assert "fx rates" not in leading
    assert "greylisted" not in leading


async def test_the_model_without_scouts_finds_the_same() -> None:
    """The model does the work of its scouts itself when it has no Agent tool."""
    conversation = await run_conversation(OfflineResearcher(), WHY, EXAMPLE, tools=READERS)

    assert conversation.children == []
    assert line_of(EXAMPLE, "config/payments-live.yaml", "read_timeout_ms: 1500") in conversation.text
    assert line_of(EXAMPLE, "src/payment_api/acquirer_client.py", "no answer from acquirer") in conversation.text
    assert assert_true(conversation, EXAMPLE) >= 15


async def test_the_model_without_ripgrep_finds_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """The patterns of the model mean the same to both kinds of search."""
    with_ripgrep = await run_conversation(OfflineResearcher(), WHY, EXAMPLE, tools=READERS)
    monkeypatch.setenv("PATH", "/nonexistent")

    without = await run_conversation(OfflineResearcher(), WHY, EXAMPLE, tools=READERS)

    assert without.text == with_ripgrep.text


async def test_refused_spawns_are_replaced_and_reported() -> None:
    """The model explores alone if no child can be spawned, and its answer says so."""
    refusals = {"Agent": "spawn refused (depth): the tree is 3 deep already; free now: 0"}

    conversation = await run_conversation(OfflineResearcher(), WHY, EXAMPLE, refusals=refusals)

    assert line_of(EXAMPLE, "config/payments-live.yaml", "read_timeout_ms: 1500") in conversation.text
    assert "scouts failed (spawn refused (depth)" in conversation.text


def test_the_source_names_nothing_of_the_example() -> None:
    """The source has no name of its files and no word that only they have: it must work elsewhere."""
    source = "\n".join(path.read_text() for path in (ROOT / "src/ramet/models").rglob("*.py")).lower()
    names = {path.name for path in example_files()}
    names |= {name.rpartition(".")[0] for name in names}

    assert [name for name in sorted(names) if re.search(rf"\b{re.escape(name.lower())}\b", source)] == []
    for word in ("acquirer", "payment", "settlement", "greylist", "fx rates", "authoris"):
        assert word not in source


def test_the_example_is_small_and_states_no_cause() -> None:
    """The example is realistic data: under 200 kB, and no file explains what is wrong."""
    files = example_files()

    assert sum(path.stat().st_size for path in files) < 200_000
    for path in files:
        assert not re.search(r"\b(root cause|the cause|too low|bug|fixme)\b", path.read_text(), re.IGNORECASE), path


DJANGO = {
    "manage.py": "#!/usr/bin/env python\nimport os\n",
    "shop/settings.py": (
        "import os\n\nDEBUG = False\nALLOWED_HOSTS = ['shop.test']\n\nDATABASES = {\n    'default': {\n"
        "        'ENGINE': 'django.db.backends.postgresql',\n        'NAME': 'shop',\n"
        "        'HOST': 'db-old.internal',\n"
        "        'PORT': 5432,\n    }\n}\n"
    ),
    "shop/urls.py": "urlpatterns = []\n",
    "orders/models.py": "class Order:\n    def total(self):\n        return 0\n",
    "orders/views.py": "from .models import Order\n\n\ndef order_list(request):\n    return Order\n",
    "docker-compose.yml": (
        "services:\n  db:\n    image: postgres:16\n  web:\n    environment:\n      DB_HOST: db-new.internal\n"
    ),
    "README.md": "# shop\n\nThe database moved to db-new.internal in March.\n",
    "var/log/gunicorn.log": "".join(
        f"[2026-03-0{day} 10:0{n}:00 +0000] [ERROR] django.request: Internal Server Error: /orders/{n}{day}\n"
        "Traceback (most recent call last):\n"
        '  File "/srv/app/orders/views.py", line 5, in order_list\n    return Order\n'
        'django.db.utils.OperationalError: could not translate host name "db-old.internal" to address\n'
        for day in range(1, 4)
        for n in range(10)
    ),
}
RUST = {
    "Cargo.toml": '[package]\nname = "ferry"\nversion = "0.2.0"\n\n[dependencies]\ntokio = "1"\n',
    "src/main.rs": "mod queue;\n\nfn main() {\n    queue::drain();\n}\n",
    "src/queue.rs": (
        "pub const MAX_IN_FLIGHT: usize = 4;\n\npub struct Queue {\n    items: Vec<u32>,\n}\n\nimpl Queue {\n"
        "    /// Takes the oldest item.\n    pub fn take(&mut self) -> u32 {\n"
        '        self.items.pop().expect("take from an empty queue")\n    }\n}\n\npub fn drain() {}\n'
    ),
    "src/retry.rs": "pub fn backoff_ms(attempt: u32) -> u64 {\n    100 * 2u64.pow(attempt)\n}\n",
    "notes.txt": "Retries back off exponentially.\n",
    "run.out": "thread 'main' panicked at src/queue.rs:10:26:\ntake from an empty queue\nnote: see RUST_BACKTRACE\n",
}


async def test_a_wrong_database_host_is_found(tmp_path: pathlib.Path) -> None:
    """A traceback leads it to the setting of the host that cannot be reached."""
    conversation = await run_conversation(OfflineResearcher(), "Why do orders give a 500?", make(tmp_path, DJANGO))

    assert line_of(tmp_path, "shop/settings.py", "db-old.internal") in conversation.text
    assert "could not translate host name" in conversation.text
    assert assert_true(conversation, tmp_path) >= 3


async def test_a_panic_is_found_in_the_code(tmp_path: pathlib.Path) -> None:
    """A panic leads it to the line of code, in a language without tracebacks."""
    conversation = await run_conversation(OfflineResearcher(), "Why does the ferry crash?", make(tmp_path, RUST))

    assert line_of(tmp_path, "src/queue.rs", "expect(") in conversation.text
    assert assert_true(conversation, tmp_path) >= 1


async def test_a_question_for_a_place_gets_the_place(tmp_path: pathlib.Path) -> None:
    """The first line of the answer is the definition."""
    conversation = await run_conversation(
        OfflineResearcher(), "Where is the backoff of a retry defined?", make(tmp_path, RUST)
    )

    first_line = conversation.text.partition("**Lines with words of the question**\n\n- ")[2]
    assert first_line.startswith(line_of(tmp_path, "src/retry.rs", "pub fn backoff_ms"))
    assert assert_true(conversation, tmp_path) >= 1


async def test_a_question_for_a_mechanism_gets_the_definition(tmp_path: pathlib.Path) -> None:
    """The definition is among the lines."""
    conversation = await run_conversation(OfflineResearcher(), "How does the Queue work?", make(tmp_path, RUST))

    assert line_of(tmp_path, "src/queue.rs", "pub struct Queue") in conversation.text


async def test_messages_of_logs_alone_are_counted(tmp_path: pathlib.Path) -> None:
    """The folder has logs and nothing else."""
    lines = [f"2026-05-01 10:{n:02d}:00 ERROR disk /dev/sda1 is full: {n * 7} bytes left" for n in range(40)]
    noise = [f"2026-05-01 09:{n:02d}:30 INFO heartbeat {n}" for n in range(60)]
    make(tmp_path, {"a.log": "\n".join(noise + lines), "b.log": "\n".join(noise)})

    conversation = await run_conversation(OfflineResearcher(), "What went wrong?", tmp_path)

    assert "a.log:61: `2026-05-01 10:00:00 ERROR disk" in conversation.text
    assert "40 lines that were read, up to line 100, differ in numbers" in conversation.text
    assert "heartbeat" not in conversation.text


async def test_a_long_log_is_sampled_and_the_answer_says_so(tmp_path: pathlib.Path) -> None:
    """The late and rare one of thousands of complaints is found, too, and counts are not claimed to be exact."""
    lines = ["2026-05-01 10:00:00 ERROR cache miss storm"] * 3_000 + ["2026-05-01 11:00:00 FATAL out of descriptors"]
    make(tmp_path, {"a.log": "\n".join(lines), "main.c": 'int main() { puts("cache miss storm"); }\n'})

    conversation = await run_conversation(OfflineResearcher(), "Why did it die?", tmp_path)

    assert "out of descriptors" in conversation.text
    assert "a.log:3001" in conversation.text
    assert "a.log: the rest of it (more matches" in conversation.text


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "There is no text here"),
        ({"a.png": b"\x89PNG\0", "b.zip": b"PK\0\0"}, "b.zip: is a binary file"),
        ({"blob": b"\0\1\2" * 1000}, "blob: is a binary file"),
        ({"empty.txt": ""}, "There is no text here"),
    ],
)
async def test_an_answer_says_that_there_is_nothing(
    tmp_path: pathlib.Path, files: Mapping[str, str | bytes], message: str
) -> None:
    """An empty folder, pictures and a binary file give words, and no invention."""
    conversation = await run_conversation(OfflineResearcher(), "Why is the parser slow?", make(tmp_path, files))

    assert message in conversation.text
    assert says_that_rules_answered(conversation)


async def test_odd_names_are_searched(tmp_path: pathlib.Path) -> None:
    """Names without endings and with spaces, braces and brackets are searched like any other."""
    make(
        tmp_path,
        {
            "LICENSE": "No warranty.\n",
            "my notes {draft}, v[1].txt": "The parser is slow since it copies the buffer.\n",
            "bin/run me": "#!/bin/sh\nparser --slow\n",
            "ünïcode/日本.md": "parser: 遅い\n",
        },
    )

    conversation = await run_conversation(OfflineResearcher(), "Why is the parser slow?", tmp_path)

    assert "copies the buffer" in conversation.text
    assert "parser --slow" in conversation.text


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("Warum schlägt der Versand fehl?", "Versand an Kunden gescheitert"),
        ("为什么支付接口失败？", "支付接口 调用失败"),
        ("Почему падает импорт каталога?", "импорт каталога прерван"),
    ],
)
async def test_questions_in_other_languages_are_answered(tmp_path: pathlib.Path, question: str, expected: str) -> None:
    """Words are words in any script."""
    make(
        tmp_path,
        {"notes.md": f"# x\n\n{expected}\n", "other.md": "something else\n", "a.py": "def unrelated():\n    pass\n"},
    )

    conversation = await run_conversation(OfflineResearcher(), question, tmp_path)

    assert expected in conversation.text


async def test_a_huge_folder_is_searched_by_pattern(tmp_path: pathlib.Path) -> None:
    """A listing cannot show each file: the old one that matters is found, and the answer says how."""
    for n in range(1_200):
        (tmp_path / f"src/pkg{n % 12}").mkdir(parents=True, exist_ok=True)
        (tmp_path / f"src/pkg{n % 12}/m{n}.py").write_text(f"def f{n}():\n    return {n}\n")
    old = (
        make(tmp_path, {"lib/deep/ancient.py": "def frobnicate(widget):\n    return widget\n"}) / "lib/deep/ancient.py"
    )
    os.utime(old, (1, 1))

    conversation = await run_conversation(OfflineResearcher(), "Where is frobnicate defined?", tmp_path)

    assert "lib/deep/ancient.py:1" in conversation.text
    assert "of 1201 shown, the newest first" in conversation.text


async def test_failing_tools_are_reported(tmp_path: pathlib.Path) -> None:
    """The answer says that every search failed, and does not say that there was nothing."""
    make(tmp_path, RUST)

    conversation = await run_conversation(
        OfflineResearcher(), "Why does it crash?", tmp_path, refusals={"Grep": "the disk is on fire"}
    )

    assert "searches failed (the disk is on fire)" in conversation.text
    assert says_that_rules_answered(conversation)


@pytest.mark.parametrize("tools", [(), ("Bash",), ("SendMessage",)])
async def test_a_model_without_tools_says_what_it_cannot_do(tools: tuple[str, ...]) -> None:
    """The model does not guess."""
    conversation = await run_conversation(OfflineResearcher(), "Why is the sky blue?", EXAMPLE, tools=tools)

    assert "no tool for that was given to me" in conversation.text
    assert conversation.calls == []


async def test_an_ended_budget_gives_the_findings(tmp_path: pathlib.Path) -> None:
    """The model must call no more tools and answers from its findings, though tools are still bound."""
    model = OfflineResearcher().bind_tools([{"name": name} for name in READERS])
    conversation = await run_conversation(OfflineResearcher(), WHY, EXAMPLE, tools=READERS)
    result_positions = [
        at for at, m in enumerate(conversation.messages) if isinstance(m, ToolMessage) and m.name != "Glob"
    ]
    shortened_messages = conversation.messages[: result_positions[20]]
    while isinstance(shortened_messages[-1], ToolMessage) is False:
        shortened_messages.pop()
    notice = "Your budget is used up (model_calls: 0 left). Do not call tools any more. Answer now with what you have."

    reply = await model.ainvoke([*shortened_messages, HumanMessage(notice)])

    assert reply.tool_calls == []
    assert "logs/payments-api.log" in reply.text
    assert "cut short" in reply.text


async def test_mail_does_not_change_the_question() -> None:
    """Notices and mail between agents come in tags, and do not count as a question."""
    model = OfflineResearcher().bind_tools([{"name": name} for name in READERS])
    messages: list[BaseMessage] = [SystemMessage("s"), HumanMessage(WHY)]
    first = await model.ainvoke(messages)
    answers = [ToolMessage("a.py", tool_call_id=call["id"] or "") for call in first.tool_calls]
    mail = HumanMessage('<agent-message from="x">\nWhy is the sky blue?\n</agent-message>')

    plain = await model.ainvoke([*messages, first, *answers])
    with_mail = await model.ainvoke([*messages, first, *answers, mail])

    assert [call["args"] for call in plain.tool_calls] == [call["args"] for call in with_mail.tool_calls]
    assert "sky" not in str(with_mail.tool_calls)


async def test_a_second_question_starts_anew_with_new_call_ids() -> None:
    """Each question of a conversation has its own search, and no id is used twice."""
    conversation = await run_conversation(OfflineResearcher(), WHY, EXAMPLE, tools=READERS)
    model = OfflineResearcher().bind_tools([{"name": name} for name in READERS])

    reply = await model.ainvoke([*conversation.messages, HumanMessage("Where is the pool size configured?")])

    assert [call["name"] for call in reply.tool_calls][:2] == ["Glob", "Glob"]
    ids = [call["id"] for call in [*conversation.calls, *reply.tool_calls]]
    assert len(ids) == len(set(ids))


async def test_the_preview_of_a_spilled_report_counts() -> None:
    """The shown lines of a report in a file count, and the answer says that the rest is elsewhere."""
    model = OfflineResearcher()
    conversation = await run_conversation(model, WHY, EXAMPLE)
    messages = list(conversation.messages)
    at, message = next((at, m) for at, m in enumerate(messages) if isinstance(m, ToolMessage) and '["logs/' in m.text)
    shortened_text = message.text[: message.text.index('["', 900) + 20]
    spilled = shortened_text + "\n… [90000 characters. The whole result is in /s/1.txt; read it in parts.]"
    messages[at] = ToolMessage(spilled, tool_call_id=message.tool_call_id)

    reply = await model.bind_tools([{"name": name} for name in (*READERS, "Agent")]).ainvoke(messages[:-1])

    assert "- … [90000 characters." in reply.text
    assert "logs/payments-api.log:" in reply.text


async def test_a_conversation_determines_the_reply() -> None:
    """Many agents share one instance concurrently, and the same conversation gets the same reply."""
    model = OfflineResearcher()

    several = await asyncio.gather(*(run_conversation(model, WHY, EXAMPLE) for _ in range(3)))

    assert len({conversation.text for conversation in several}) == 1


async def test_a_streamed_answer_equals_the_whole_answer() -> None:
    """The chunks of the stream make the same message, with the same usage; text comes by the word."""
    conversation = await run_conversation(OfflineResearcher(), WHY, EXAMPLE)
    model = OfflineResearcher().bind_tools([{"name": name} for name in (*READERS, "Agent")])
    for at in [at for at, m in enumerate(conversation.messages) if isinstance(m, AIMessage)]:
        reply = await model.ainvoke(conversation.messages[:at])
        pieces = [p async for p in model.astream(conversation.messages[:at]) if isinstance(p, AIMessageChunk)]

        whole_message = merge(pieces)

        assert (whole_message.text, whole_message.tool_calls) == (reply.text, reply.tool_calls)
        assert whole_message.usage_metadata == reply.usage_metadata
        assert reply.usage_metadata is not None
        assert reply.usage_metadata["input_tokens"] > 0
        assert len(pieces) > 100 or not reply.text


@given(st.text(max_size=200))
def test_any_text_is_a_question(text: str) -> None:
    """Each text is understood as something, and its search is a valid pattern."""
    question = understand(text)

    for pattern in question.terms.values():
        re.compile(pattern)
    assert len(question.terms) <= 6


def test_lines_with_one_meaning_are_one_message() -> None:
    """Numbers, ids and quoted names do not make two messages different."""
    log = "\n".join(
        f"x.log:{n}:2026-01-01T10:00:{n:02d}Z ERROR db: query {n:08x} of 'user{n}' took {5000 + n} ms (limit 9)"
        for n in range(1, 9)
    )

    (line,) = group(parse_lines(log, ["x.log"]))

    assert (line.number, line.alike, line.last) == (1, 8, 8)
    assert message("2026-01-01 10:00:00,123 - INFO - hello 5") == "hello 5"


@pytest.mark.parametrize(
    ("text", "rank"),
    [
        ("10:00:00 INFO db: 0 errors", 1),
        ("10:00:00 WARN pool: an error", 2),
        ('127.0.0.1 - - "GET /orders HTTP/1.1" 500 12', 3),
        ("thread 'main' panicked at src/queue.rs:10:26:", 3),
        ("level=crit msg=full", 4),
        ("nothing of note", 0),
    ],
)
def test_the_stated_level_of_a_line_counts_first(text: str, rank: int) -> None:
    """Words of trouble count only where the line states no level."""
    assert severity(text) == rank


def test_a_place_that_fits_two_names_is_dropped() -> None:
    """A search writes the same line for both."""
    assert parse_lines("a:12:5:x", ["a", "a:12"]) == []
    assert parse_lines("a:12:5:x", ["a:12"]) == [EvidenceLine("a:12", 5, "x")]


def test_a_literal_is_compared_in_bounded_time() -> None:
    """Files are not trusted: many placeholders would make a regular expression try every way."""
    code = EvidenceLine("a.py", 1, '"aaaaaaaaaa' + "%sa" * 60 + 'b"')

    assert find_writers(EvidenceLine("a.log", 1, "a" * 480), [code]) == []


@given(st.text(max_size=200), st.sampled_from(["a.py", "a.yaml"]))
def test_any_line_can_be_read(text: str, path: str) -> None:
    """A setting from any file stands on the line that is quoted for it."""
    for each in settings_on(EvidenceLine(path, 1, text)):
        assert each.key in text
        assert each.value in text
        assert each.measure[0] in ("ms", "number", "text")


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("logs/app", "logs"),
        ("var/log/x.json", "logs"),
        ("a.log.2", "logs"),
        ("src/logs/handler.py", "source"),
        ("logging.ini", "settings"),
        ("catalog.py", "source"),
        ("uv.lock", "docs"),
        ("Dockerfile", "settings"),
        ("LICENSE", "docs"),
    ],
)
def test_a_name_gives_the_kind_of_a_file(path: str, kind: str) -> None:
    """Names of logs alone are logs."""
    assert kind_of(path) == kind
