"""Operations that load bundles into a running agent and unload them. Code of bundles never runs in the host process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ramet.concurrency.deadline import run_shielded
from ramet.core.errors import InvalidValue, SandboxFailed
from ramet.services.contract import AgentSpec, LoadableBundle

if TYPE_CHECKING:
    from ramet.host.runtime import AgentRuntime


class LoadBundle(Struct, forbid_unknown_fields=True):
    """Load a bundle: its code into the agent's sandboxes, also running ones; its tools and skills for the next turn.

    The answer contains the ids of all loaded `bundles`, and the `tools` and `skills` of this one.
    """

    bundle: str  #: its id


class UnloadBundle(Struct, forbid_unknown_fields=True):
    """Unload a bundle. Running code keeps its imports; the next turn has nothing of the bundle.

    The answer contains the ids of all loaded `bundles`.
    """

    bundle: str  #: its id


async def change(
    spec: AgentSpec,
    operation: LoadBundle | UnloadBundle,
    check: Callable[[LoadableBundle], None] = lambda _: None,
    on_change: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Load or unload a bundle, call `on_change`, and return the bundles that are loaded afterwards.

    Raises Unknown, Damaged, InvalidValue, Gone, any error of `check`, and SandboxFailed if a sandbox on another machine
    cannot receive the bundle. A failed load is undone.
    """
    if (loaded_bundles := spec.loaded_bundles) is None:
        raise InvalidValue("bundle", spec.path, "an agent in a sandbox: code of bundles does not run in the host")
    loads = isinstance(operation, LoadBundle)
    bundle = await (loaded_bundles.load(operation.bundle, check) if loads else loaded_bundles.unload(operation.bundle))
    try:
        await _sync_sandboxes(spec.runtime, loaded_bundles.folder)
        on_change()
    except BaseException:
        if loads:
            await run_shielded(loaded_bundles.unload(operation.bundle))
        raise
    summary: dict[str, Any] = {"bundles": [each.id for each in loaded_bundles.bundles]}
    if loads:
        summary |= {"tools": [each.name for each in bundle.tools], "skills": list(bundle.skills)}
    return summary


async def _sync_sandboxes(runtime: AgentRuntime, folder: Path) -> None:
    """Synchronize an import folder with all running sandboxes that read it, also on other machines. Raises
    SandboxFailed.
    """
    for opened_tree in runtime.trees.values():
        for run in list(opened_tree.tree.register.living()):
            if (sandbox := run.sandbox.current) is not None and run.import_dir == folder:
                try:
                    await sandbox.sync()
                except SandboxFailed:
                    if run.sandbox.current is sandbox:  # Otherwise the sandbox has ended and needs no update.
                        raise
