"""`ramet gc` and `ramet keep`: remove old ended trees with everything they left, unless they are to be kept."""

from __future__ import annotations

import asyncio
import json
import sys
from argparse import Namespace
from contextlib import suppress
from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec
from rich.text import Text

from ramet.cli.render import formatting
from ramet.cli.render.console import console
from ramet.cli.render.json_output import print_json
from ramet.cli.render.sanitize import one_line
from ramet.cli.sources.choose import full_id, source_of
from ramet.concurrency.clock import SystemClock
from ramet.core.errors import StoreFailed
from ramet.disk.state_folder import state_folder
from ramet.host.control.run_queries import journal_in, kernel_of
from ramet.host.control.socket import NoKernel, send_request
from ramet.host.journal.ttl import Collect
from ramet.host.retention.janitor import CollectReply
from ramet.host.retention.scrubbing import scrub
from ramet.host.retention.sweep import DeletedTree, sweep
from ramet.store.sqlite.compaction import compact
from ramet.store.sqlite.store import SqliteStore

_MAX_NAMED = 20  #: maximum skipped transcripts and trees that are named; of others only the number is printed


async def gc(options: Namespace) -> int:
    """Remove trees, or list what would be removed."""
    removed_trees, scrubbed_count, skipped_paths, freed_bytes = await _sweep(options)
    out, err = console(sys.stdout), console(sys.stderr)
    for each in removed_trees:
        if options.json:
            print_json(msgspec.json.encode(each))
        else:
            ended = f", ended {each.ended:%Y-%m-%d %H:%M} UTC" if each.ended else ""
            text = f"{each.root}  {one_line(each.agent, 40)}, {each.state}{ended}, {formatting.count(each.runs, 'run')}"
            out.print(Text(text), soft_wrap=True)
    if not options.json:
        action = "would be removed" if options.dry_run else "removed"
        err.print(Text(f"{formatting.count(len(removed_trees), 'tree')} {action}", "dim"), soft_wrap=True)
        if scrubbed_count:
            message = f"values of variables were replaced by names in {formatting.count(scrubbed_count, 'tree')}"
            err.print(Text(message, "dim"), soft_wrap=True)
        if freed_bytes:
            err.print(Text(f"the journal is {formatting.size(freed_bytes)} smaller", "dim"), soft_wrap=True)
    for path in skipped_paths[:_MAX_NAMED]:
        err.print(Text(f"skipped: {one_line(path)}"), soft_wrap=True)
    if len(skipped_paths) > _MAX_NAMED:
        err.print(Text(f"skipped: {len(skipped_paths) - _MAX_NAMED} more"), soft_wrap=True)
    return 0


async def keep(options: Namespace) -> int:
    """Keep the tree of a run, or stop keeping it."""
    async with source_of(options) as source:
        outcome = await source.keep(await full_id(source, options.id), not options.off)
    if options.json:
        print_json(json.dumps(outcome, ensure_ascii=True))
    else:
        text = f"{outcome['tree']} is {'kept' if outcome['kept'] else 'no longer kept'}"
        console(sys.stdout).print(Text(text), soft_wrap=True)
    return 0


class _SweepResult(NamedTuple):
    """The removed trees, the number of trees with replaced values of variables, and the skipped transcripts.

    `freed_bytes` is the number of bytes that the journal released.
    """

    removed_trees: list[DeletedTree]
    scrubbed_count: int
    skipped_paths: list[str]
    freed_bytes: int = 0


async def _sweep(options: Namespace) -> _SweepResult:
    path = journal_in(options.dir)
    if not options.dry_run and kernel_of(path) is not None:
        with suppress(NoKernel):  # No kernel answers: the store's error names the holder of the journal.
            return await _ask_kernel(options)
    size_before = path.stat().st_size
    swept = await _remove_trees(options, SqliteStore(path, read_only=options.dry_run))
    if not options.dry_run:
        try:
            await asyncio.to_thread(compact, path)
        except StoreFailed as problem:  # Everything to be removed has been removed.
            console(sys.stderr).print(Text(f"the journal was not compacted: {problem}"), soft_wrap=True)
    return swept._replace(freed_bytes=max(0, size_before - path.stat().st_size))


async def _ask_kernel(options: Namespace) -> _SweepResult:
    """Ask the journal's kernel to remove the trees, in parts. Raises NoKernel if none answers, and Refused."""
    request, removed_trees, has_more = (
        Collect(before=_cutoff(options), keep=tuple(options.keep)),
        list[DeletedTree](),
        True,
    )
    while has_more:
        answer = msgspec.convert(await send_request(options.dir, request), CollectReply)
        removed_trees, has_more = [*removed_trees, *answer.gone], answer.more
    return _SweepResult(removed_trees, 0, [])


def _cutoff(options: Namespace) -> datetime:
    """Return the moment before which a tree must have ended to be removed."""
    return SystemClock().now() - timedelta(seconds=min(options.older_than, 10_000 * 86_400.0))


async def _remove_trees(options: Namespace, store: SqliteStore) -> _SweepResult:
    from ramet.services.teams.tables import TeamTables

    now, cutoff = SystemClock().now(), _cutoff(options)
    await store.open()
    try:
        keep = [*options.keep, *await TeamTables(store).needed_trees()]
        removed_trees = await sweep(store, options.dir, before=cutoff, now=now, keep=keep, dry_run=options.dry_run)
        if options.dry_run:
            return _SweepResult(removed_trees, 0, [])
        await _scrub_agents(store)
        scrub_result = await scrub(store, state_folder(options.dir) / "transcripts")
        await store.shrink()
        return _SweepResult(removed_trees, scrub_result.trees, scrub_result.skipped_transcripts)
    finally:
        await store.close()


async def _scrub_agents(store: SqliteStore) -> None:
    """Remove values of variables from records of ended agents; the others need theirs to continue."""
    from ramet.services.teams.secret_values import strip_secrets
    from ramet.services.teams.tables import TeamTables

    tables = TeamTables(store)
    for row in (await tables.agents()).readable_rows:
        has_values = row.env or (row.policy is not None and row.policy.env_vars)
        if has_values and row.state in ("failed", "ended"):
            tables.hold(row)
            await tables.write(strip_secrets(row))
