"""The command line parser: commands, options, help. It imports nothing slow, so that help is instant."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

from ramet.cli.setup_commands import add_setup_commands
from ramet.cli.values import parse_attachment, parse_folder, parse_int, parse_memory, parse_name, parse_number
from ramet.cli.verbs import Add, add_verbs, adder
from ramet.core.limits import SpawnLimits

_DEFAULTS = SpawnLimits()
EXIT_STATUSES = """\
exit status: 0 an answer · 1 failed · 2 wrong usage · 3 needs input · 4 out of budget · 5 crashed · 6 lost
             7 paused · 124 out of time · 130 cancelled · 137 out of memory · 141 the output was closed"""


#: Other programs' names for the commands, by the command before them.
COMMAND_ALIASES: Mapping[str, Mapping[str, str]] = {
    "ramet": {
        "attach": "logs -f",
        "cancel": "stop",
        "chat": "ask",
        "clean": "gc",
        "cleanup": "gc",
        "collect": "cp",
        "completions": "completion",
        "copy": "cp",
        "create": "init",
        "delete": "gc",
        "diagnose": "doctor",
        "events": "logs",
        "help": "--help",
        "history": "sessions show",
        "info": "show",
        "inspect": "show",
        "kill": "stop",
        "list": "ps",
        "ls": "ps",
        "new": "init",
        "prune": "gc",
        "rm": "gc",
        "server": "serve",
        "settings": "config",
        "spawn": "run",
        "start": "run",
        "status": "ps",
        "version": "--version",
    },
    "ramet schedule": {"delete": "rm", "remove": "rm", "cancel": "rm", "ls": "list", "ps": "list"},
    "ramet sessions": {"delete": "rm", "remove": "rm", "history": "show", "ls": "list", "ps": "list"},
    "ramet config": dict.fromkeys(("get", "list", "print", "show", "validate"), "check"),
}
_MAX_SHOWN = 60  #: characters of an unknown command


class Parser(argparse.ArgumentParser):
    """A parser that reports an error on one line."""

    def _check_value(self, action: argparse.Action, value: object) -> None:
        """Refuse an unknown command, and name the equivalent or the most similar ones."""
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            noun = "command" if action.metavar == "COMMAND" else "verb"
            raise argparse.ArgumentError(
                action, f"{_quote(value)} is not a {noun}{self._suggestion(str(value), action)}"
            )
        super()._check_value(action, value)

    def _suggestion(self, word: str, action: argparse._SubParsersAction[Any]) -> str:
        """Return the suggestion for a word, as the rest of a sentence."""
        if (other := COMMAND_ALIASES.get(self.prog, {}).get(word.lower())) is not None:
            return f"; use {self.prog} {other}"
        similar = difflib.get_close_matches(word[:_MAX_SHOWN].lower(), action.choices, 3)
        if not similar and self.prog != "ramet":
            return f"; the verbs are {', '.join(action.choices)}"
        return f"; similar: {', '.join(similar)}" if similar else ""

    def error(self, message: str) -> NoReturn:
        """Print an error, and the command for help; exit with status 2."""
        line = message.removeprefix("argument ").replace("\n", " ")
        print(f"{self.prog}: {line} (see {self.prog} --help)", file=sys.stderr)
        raise SystemExit(2)


def _quote(value: object) -> str:
    """Return a word for display, on one line."""
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN + 2 else f"{text[:_MAX_SHOWN]}…'"


def build_parser() -> Parser:
    """Return the parser of the whole command line. `options.command` is None, or the requested command."""
    parser = Parser(
        prog="ramet",
        usage="ramet COMMAND …",
        description="Agents that spawn agents: isolated, bounded, stoppable, durable and visible.",
        epilog="Details: ramet COMMAND --help",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="store_true", help="show the version and exit")
    parser.add_argument(
        "--json", dest="version_json", action="store_true", help="with --version: as JSON, with what is installed"
    )
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", title="commands", prog=parser.prog, parser_class=Parser
    )
    add = adder(commands, EXIT_STATUSES)
    for add_command in (_ask, _wrap, _agents, _mcp, _trust, _config, _images):
        add_command(add)
    add_verbs(commands, EXIT_STATUSES)
    add_setup_commands(commands)
    return parser


def _ask(add: Add) -> None:
    ask = add(
        "ask",
        "QUESTION [--dir DIR] [options]",
        "answer a question about a folder",
        description="Let agents answer a question about a folder. The answer goes to stdout, "
        "everything else to stderr.",
        runs=True,
        bare=True,
    )
    ask.add_argument(
        "question",
        metavar="QUESTION",
        help="what to find out, by an agent of a type if it says @TYPE; - reads it from stdin",
    )
    ask.add_argument("--dir", type=parse_folder, default=".", help="the folder to work in (default: this one)")
    ask.add_argument("--model", type=parse_name, metavar="PROVIDER:NAME", help="default: offline, which needs no key")
    ask.add_argument("--agent", type=parse_name, metavar="TYPE", help="the agent to ask (see ramet agents list)")
    ask.add_argument(
        "--image",
        "--attach",
        dest="attachments",
        action="append",
        type=parse_attachment,
        default=[],
        metavar="FILE",
        help="an image, a PDF or a text that the agent sees with the question; may be repeated",
    )
    ask.add_argument("--transcripts", metavar="DIR", help="where transcripts go (default: DIR/.ramet/transcripts)")
    ask.add_argument(
        "--backend",
        choices=["inline", "local", "bwrap"],
        default="inline",
        help="where the agents below the first one run: in this process, in separate processes, in sandboxes",
    )

    limits = ask.add_argument_group("limits of the whole tree")
    limits.add_argument("--max-tokens", type=parse_int(0), metavar="N", help="tokens, input and output")
    limits.add_argument("--max-usd", type=parse_number, metavar="X", help="money, in US dollars")
    limits.add_argument("--max-calls", type=parse_int(0), metavar="N", help="model calls, retries included")
    limits.add_argument("--max-agents", type=parse_int(0), metavar="N", help="agents started below the first one")
    limits.add_argument("--timeout", type=parse_number, metavar="S", help="seconds")
    limits.add_argument(
        "--at-limit",
        choices=["end", "pause"],
        help="what a request meets that does not fit (default: end); pause: asks at the terminal to raise the limit, "
        "or without one ends with status 7, and ramet resume goes on",
    )
    limits.add_argument(
        "--depth",
        type=parse_int(0),
        metavar="N",
        help=f"levels of agents below the first one (default: {_DEFAULTS.depth})",
    )
    limits.add_argument(
        "--running",
        type=parse_int(1),
        metavar="N",
        help=f"agents that run at the same time (default: {_DEFAULTS.running})",
    )

    output = ask.add_argument_group("output and approvals")
    output.add_argument(
        "--json", action="store_true", help="print every event as a line of JSON on stdout, and nothing else"
    )
    output.add_argument("--quiet", action="store_true", help="print only the answer and errors")
    approvals = output.add_mutually_exclusive_group()
    approvals.add_argument("--yes", action="store_true", help="allow every call that needs an approval")
    approvals.add_argument(
        "--no-approvals",
        action="store_true",
        help="deny every call that needs an approval; without a terminal this is the default",
    )


def _wrap(add: Add) -> None:
    wrap = add(
        "wrap",
        "[--usd X] [--model-calls N] [--memory 2G] [--dir DIR] [options] -- COMMAND [ARG…]",
        "run a program of your own in a sandbox, at this terminal, under a budget",
        description="Run a program, such as claude or codex, in a sandbox. It works in a folder, and asks its models "
        "through this process, which has the keys and counts. At its end a line on stderr says what it has used.",
        runs=True,
        bare=True,
    )
    wrap.add_argument("program", nargs="+", metavar="COMMAND", help="the program and its arguments, after --")
    wrap.add_argument("--dir", type=parse_folder, default=".", help="the folder to work in (default: this one)")
    wrap.add_argument("--usd", type=parse_number, metavar="X", help="the limit of money, in US dollars")
    wrap.add_argument("--model-calls", type=parse_int(0), metavar="N", help="the limit of requests to models")
    wrap.add_argument("--timeout", type=parse_number, metavar="S", help="the limit of time, in seconds")
    wrap.add_argument(
        "--model", type=parse_name, metavar="PROVIDER:NAME", help="the model that a known program asks first"
    )
    wrap.add_argument(
        "--with-tools",
        action="store_true",
        help="offer a known program tools that start agents below it: those of the folder, and other known programs",
    )
    wrap.add_argument("--memory", type=parse_memory, metavar="SIZE", help="such as 512M or 2G (default: 2G)")
    wrap.add_argument("--name", type=parse_name, metavar="NAME", help="its name in ramet ps (default: the program's)")
    wrap.add_argument(
        "--policy", type=parse_name, metavar="FILE|JSON", help="further rights of its sandbox, such as endpoints"
    )
    wrap.add_argument("--backend", choices=["local", "bwrap"], help="the kind of sandbox (default: bwrap)")


def _agents(add: Add) -> None:
    agents = add(
        "agents",
        "list|check [--dir DIR]",
        "list the agent types of a folder, or check its agent files",
        description="The agent types that `ramet ask` and its agents can use in a folder.",
        bare=True,
    )
    each = adder(agents.add_subparsers(dest="verb", metavar="VERB", title="verbs", prog=agents.prog, required=True))
    for verb, text in (
        ("list", "list the agent types: where each is defined, and its purpose"),
        ("check", "list the problems of their files, as path: sentence; status 1 if there are any"),
    ):
        verb_parser = each(f"agents {verb}", "[options]", text, description=text, bare=True)
        verb_parser.add_argument("--dir", type=parse_folder, default=".", help="the folder (default: this one)")
        verb_parser.add_argument("--json", action="store_true", help="print one JSON object per line")


def _mcp(add: Add) -> None:
    mcp = add(
        "mcp",
        "list|install|test|prompts|login|logout [--dir DIR]",
        "list the MCP servers of a folder, install their packages, try one, or log in there",
        description="The MCP servers that the files of a folder name: .mcp.json, and agent files.",
        bare=True,
    )
    each = adder(mcp.add_subparsers(dest="verb", metavar="VERB", title="verbs", prog=mcp.prog, required=True))
    list_verb = each("mcp list", "[options]", "list the servers", description="List the servers.", bare=True)
    text = "start a server in a sandbox that sees the folder, and list its tools"
    test_verb = each("mcp test", "NAME [options]", text, description=text, bare=True)
    test_verb.add_argument("name", type=parse_name, metavar="NAME", help="the server")
    install_verb = each(
        "mcp install",
        "[NAME…] [options]",
        "install the packages of servers that start with npx or uvx",
        description="Install the packages of servers whose command is npx or uvx, as .mcp.lock.json has them. "
        "A package that is not in that file is resolved now, and added to the file.",
        bare=True,
    )
    install_verb.add_argument("names", nargs="*", type=parse_name, metavar="NAME", help="the servers (default: all)")
    install_verb.add_argument("--update", action="store_true", help="resolve again what the file has already")
    text = "start a server as test does, and list its prompts, or print the text of one"
    prompts_verb = each("mcp prompts", "NAME [PROMPT [KEY=VALUE …]] [options]", text, description=text, bare=True)
    prompts_verb.add_argument("name", type=parse_name, metavar="NAME", help="the server")
    prompts_verb.add_argument("prompt", nargs="?", metavar="PROMPT", help="the prompt whose text is printed")
    prompts_verb.add_argument("arguments", nargs="*", metavar="KEY=VALUE", help="its arguments")
    text = "log in at the address of a server (OAuth), and keep the login in your own folder, for your runs"
    login_verb = each("mcp login", "NAME [--no-browser]", text, description=text, bare=True)
    login_verb.add_argument("name", type=parse_name, metavar="NAME", help="the server")
    login_verb.add_argument(
        "--no-browser",
        dest="browser",
        action="store_false",
        help="only print the link, and read the address to which the browser is sent",
    )
    text = "remove the login at the address of a server"
    logout_verb = each("mcp logout", "NAME", text, description=text, bare=True)
    logout_verb.add_argument("name", type=parse_name, metavar="NAME", help="the server")
    for verb in (list_verb, install_verb, test_verb, prompts_verb, login_verb, logout_verb):
        verb.add_argument("--dir", type=parse_folder, default=".", help="the folder (default: this one)")
    for verb in (list_verb, install_verb, test_verb, prompts_verb):
        verb.add_argument("--json", action="store_true", help="print one JSON object per line")


def _trust(add: Add) -> None:
    trust = add(
        "trust",
        "DIR [--show|--forget]",
        "let a folder's hooks and servers run",
        bare=True,
        description="Show the commands that a folder's files name (hooks, servers) and the settings of a server there "
        "(ramet.yaml), and allow them to run. "
        "Until then they are disabled. A change of them disables them again.",
    )
    trust.add_argument("dir", type=parse_folder, metavar="DIR", help="the folder")
    choices = trust.add_mutually_exclusive_group()
    choices.add_argument("--show", action="store_true", help="only show them, without a change")
    choices.add_argument("--forget", action="store_true", help="stop trusting the folder")


def _config(add: Add) -> None:
    config = add(
        "config",
        "[check [FILE]]",
        "show and check the settings of a server",
        description="The settings of a server: ramet.yaml, then the environment. Without a verb they are checked.",
        bare=True,
    )
    verbs = config.add_subparsers(dest="verb", metavar="VERB", title="verbs", prog=config.prog)
    config.set_defaults(file=None, json=False)
    check = adder(verbs)(
        "config check",
        "[FILE] [--json]",
        "show each setting, its value and where it comes from; or the problems",
        description="Show each setting, its value and where it comes from; or a line for each problem, and status 1.",
        bare=True,
    )
    check.add_argument(
        "file", nargs="?", type=parse_name, metavar="FILE", help="default: ramet.yaml in this folder, if any"
    )
    check.add_argument("--json", action="store_true", help="print one JSON object per line")


def _images(add: Add) -> None:
    images = add(
        "images",
        "base|runtime [options]",
        "build the images that pods start from",
        description="Images for pods, built and pushed without Docker.",
        bare=True,
    )
    each = adder(images.add_subparsers(dest="verb", metavar="VERB", title="verbs", prog=images.prog, required=True))
    base = each(
        "images base",
        "TAR --to NAME [--registry URL] [options]",
        "push a root file system as a base image, and print its name",
        description="Push a tar of a root file system with Python as an image with one layer, "
        "and print its name with its digest.",
        bare=True,
    )
    base.add_argument(
        "tar", type=parse_name, metavar="TAR", help="plain or compressed with gzip, as mmdebstrap creates it"
    )
    base.add_argument("--to", type=parse_name, metavar="NAME", required=True, help="repository, or repository:tag")
    runtime = each(
        "images runtime",
        "[--base IMAGE] [--registry URL] [options]",
        "push an image with ramet on top of a base image with Python, and print its name",
        bare=True,
        description="Push an image with ramet, and with the packages that its guests import, on top of a base image "
        "with Python, and print its name with its digest. An image that was pushed before is reused. The login comes "
        "from the settings registry_username and registry_password, or from Docker.",
    )
    runtime.add_argument(
        "--base",
        type=parse_name,
        metavar="IMAGE",
        help="an image of the same registry, or host/name:tag (default: the setting base_image)",
    )
    runtime.add_argument(
        "--kind", choices=["bare", "llm"], default="llm", help="bare: only functions; llm: model agents, too"
    )
    runtime.add_argument("--into", type=parse_name, metavar="NAME", help="repository (default: ramet-bare, ramet-llm)")
    for verb in (base, runtime):
        verb.add_argument(
            "--registry", type=parse_name, metavar="URL", help="a URL, or host:port (default: the setting registry_url)"
        )
        verb.add_argument(
            "--config",
            type=parse_name,
            metavar="FILE",
            help="a settings file (default: ramet.yaml in this folder, if trusted)",
        )
