"""`ramet repair`: report damage of a journal, set damaged trees aside, and accept lost events."""

from __future__ import annotations

import json
from argparse import Namespace

from ramet.cli.errors import report_damage
from ramet.cli.render import formatting
from ramet.cli.render.console import print_note
from ramet.cli.render.json_output import print_json
from ramet.cli.render.sanitize import one_line
from ramet.concurrency.clock import SystemClock
from ramet.core.errors import DamagedTree
from ramet.disk.state_folder import JOURNAL, checked_state_folder
from ramet.host.control.run_queries import journal_in, journal_reader
from ramet.host.recovery.repair import check, set_aside
from ramet.store.sqlite.accept_loss import accept_loss
from ramet.store.sqlite.store import SqliteStore


async def repair(options: Namespace) -> int:
    """Run the requested repair; without one, report the damage, and return 1 if there is any."""
    if options.set_aside is not None:
        return await _set_aside(options)
    if options.accept_loss:
        return _accept_loss(options)
    async with await journal_reader(options.dir) as records:
        checked = await check(records)
    if options.json:
        for each in checked.damage_errors:
            print_json(json.dumps(vars(each), ensure_ascii=True))
    trees = sum(isinstance(each, DamagedTree) for each in checked.damage_errors)
    print_note(f"{formatting.count(checked.readable_count, 'tree')} can be read, {trees} cannot")
    return report_damage(checked.damage_errors)


def _accept_loss(options: Namespace) -> int:
    accepted = accept_loss(checked_state_folder(options.dir) / JOURNAL)
    if options.json:
        facts = {"committed": accepted.committed_mark._asdict(), "found": accepted.actual_mark._asdict()}
        print_json(json.dumps(facts, ensure_ascii=True))
    elif accepted.is_loss:
        committed, actual = accepted.committed_mark.cursor, accepted.actual_mark.cursor
        print_note(f"the journal ends at event {actual}, and continues after event {committed}")
    else:
        print_note("no committed event is missing")
    return 0


async def _set_aside(options: Namespace) -> int:
    store = await SqliteStore(journal_in(options.dir)).open()
    try:
        root = await set_aside(store, options.set_aside, SystemClock().now())
    finally:
        await store.close()
    if options.json:
        print_json(json.dumps({"set_aside": root}, ensure_ascii=True))
    else:
        print_note(f"{one_line(root)} is set aside")
    return 0
