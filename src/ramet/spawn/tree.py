"""One tree of runs, put together: the face that its tools and its owner see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ramet.core.errors import Denied, MailRefused, Unknown
from ramet.core.limits import SpawnLimits
from ramet.core.outcome import Result, Status
from ramet.spawn.handle import Handle
from ramet.spawn.plan import spawnable
from ramet.spawn.post import Post
from ramet.spawn.register import Register
from ramet.spawn.run import Run
from ramet.spawn.services import Services
from ramet.spawn.spawner import Spawner
from ramet.spawn.supervisor import Supervisor
from ramet.spawn.turn import partial
from ramet.spawn.waiting import wait_at_most
from ramet.tools.context import RunView, SpawnRequest, StopReceipt, ToolUseContext
from ramet.tools.envelope import report


class RunTree:
    """What `ramet.tools.context.Tree` promises, for one tree: each call comes from a run of it."""

    def __init__(self, services: Services, limits: SpawnLimits) -> None:
        self.register = Register(services, limits)
        self.supervisor = Supervisor(self.register)
        self.post = Post(self.register, self.supervisor)
        self.spawner = Spawner(self.register, self.supervisor, face=self)

    def handle(self, run: Run) -> Handle:
        """The way to a run for whoever may have it."""
        return Handle(run, self.supervisor, self.post)

    async def spawn(self, parent: ToolUseContext, request: SpawnRequest) -> Handle:
        """Give birth below the run of this context. Raises SpawnRefused, Unknown, InvalidValue."""
        return self.handle(await self.spawner.spawn(self._run_of(parent), request, parent.slot))

    def spawnable(self, parent: ToolUseContext) -> Mapping[str, str]:
        """Types that this run may spawn, with their descriptions."""
        return spawnable(self._run_of(parent), self.register.services)

    async def send(self, sender: ToolUseContext, to: str, text: str) -> str:
        """Deliver a message of this run's. Raises Unknown, MailRefused."""
        target = self.register.find(to, self._run_of(sender))
        if target.info.id == sender.run.id:
            raise MailRefused(to, "that is yourself")
        return self.post.deliver(target, text, sender=sender.run.path, kind="agent")

    async def stop(self, asker: ToolUseContext, target: str, reason: str) -> StopReceipt:
        """Stop a run below the asker. Raises Unknown, Denied."""
        run = self._below(asker, target, "stop")
        if not run.is_living:
            raise Unknown("running agent", target, tuple(each.name for each in self.register.living()))
        return await self.supervisor.stop(run, reason)

    async def output(self, asker: ToolUseContext, target: str, *, block: bool, timeout_s: float) -> str:
        """What a run below the asker has found. Raises Unknown, Denied."""
        run = self._below(asker, target, "read")
        if block and run.is_living:
            await wait_at_most(run.ended(), timeout_s, self.register.services.clock)
        if run.result is not None:
            return f"status: {run.result.status}\n{report(run.result, name=run.name)}"
        so_far = Result(status=Status.COMPLETED, value=partial(run) or "(nothing yet)")
        return f"status: {run.state}\n{report(so_far, name=run.name)}"

    def list_runs(self, asker: ToolUseContext | None = None) -> Sequence[RunView]:
        """All runs of the tree, in order of path."""
        return sorted((run.view() for run in self.register.runs.values()), key=lambda view: view.path)

    def _run_of(self, context: ToolUseContext) -> Run:
        return self.register.runs[context.run.id]

    def _below(self, asker: ToolUseContext, target: str, verb: str) -> Run:
        own = self._run_of(asker)
        run = self.register.find(target, own)
        if not run.is_below(own):
            raise Denied(f"{verb} {target}", "it is not below you")
        return run
