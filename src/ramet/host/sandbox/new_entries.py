"""Report of the repositories and settings that a run made in its writable mounts: git and editors would obey them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

from ramet.concurrency.deadline import run_shielded
from ramet.concurrency.threads import in_thread
from ramet.core.errors import InvalidValue
from ramet.core.events import Notice
from ramet.core.policy.policy import Grant
from ramet.isolation.masking.secret_forms import mask_text
from ramet.isolation.mounts import Roots, sources_by_mount
from ramet.isolation.writable_mounts.host_code import HostCode
from ramet.isolation.writable_mounts.protected_entries import find_protected
from ramet.spawn.masking import forms_of_grant
from ramet.tools.context import ToolUseContext

_MOST_NAMED = 10
_MAX_NAME = 200  #: characters: a guest chooses the names
_NO_CODE = HostCode((), ())


@asynccontextmanager
async def reporting_new_entries(run: ToolUseContext, grant: Grant, roots: Roots) -> AsyncGenerator[None]:
    """Compare the writable mounts of a run before and after, and record a notice that names new entries.

    The sandbox of the run starts and ends while the context is open. The entries are those that would have been
    read-only if they had been there before.
    """
    sources = sources_by_mount(grant.writable_mounts, roots, "writable_mounts")
    before = await in_thread(lambda: _entries_of(sources), name="ramet-search")
    try:
        yield
    finally:
        after = await run_shielded(in_thread(lambda: _entries_of(sources), name="ramet-search"))
        if new := sorted(after - before):
            forms = forms_of_grant(grant)
            named = ", ".join(repr(mask_text(each, forms)[:_MAX_NAME]) for each in new[:_MOST_NAMED])
            more = f" and {len(new) - _MOST_NAMED} more" if len(new) > _MOST_NAMED else ""
            text = f"made in its writable mounts; look before you use git or an editor there: {named}{more}"
            run.emit(Notice, text=text)


def _entries_of(sources: Mapping[str, str]) -> set[str]:
    """Return the paths of entries, and the reason why a mount could not be searched. Blocks."""
    entries = set()
    for mount, source in sources.items():
        try:
            entries |= {f"{mount}/{each}" for each in find_protected(mount, source, (), _NO_CODE).paths}
        except InvalidValue as problem:
            entries.add(f"{mount}: {problem.accepted}")
    return entries
