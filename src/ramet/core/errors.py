"""Every error that a caller can act on, in one class tree.

Each error names the field, the value, and the accepted values.
"""

from __future__ import annotations

from collections.abc import Mapping


class RametError(Exception):
    """The base class of all errors of ramet.

    Messages are bounded: a name in a message may come from a model.
    """


class Bug(RametError):
    """A defect of ramet, not of the caller: a state that should be impossible."""


class InvalidValue(RametError, ValueError):
    """A value that cannot be accepted: names the field, the value, and the accepted values."""

    def __init__(self, field: str, value: object, accepted: str) -> None:
        self.field, self.value, self.accepted = field, value, accepted
        try:
            text = repr(value)
        except Exception:  # a hostile __repr__, endless nesting, an integer of more digits than Python prints
            text = f"a value of type {type(value).__name__}"
        if len(text) > 120:
            text = f"{text[:100]}… ({len(text)} characters)"
        super().__init__(f"{_truncate(field)}: {text} is not accepted; expected {accepted}")


class MissingValue(InvalidValue):
    """A required field, or several, that were not given: names them and the accepted values."""

    def __init__(self, field: str, accepted: str) -> None:
        super().__init__(field, None, accepted)
        self.args = (f"{_truncate(field)} {'are' if ', ' in field else 'is'} missing; expected {accepted}",)


class Unknown(RametError, LookupError):
    """A name that does not exist: says which kind of thing, which name, and which names exist."""

    def __init__(self, kind: str, name: str, known: tuple[str, ...] = ()) -> None:
        self.kind, self.name, self.known = kind, _truncate(name), known
        super().__init__(
            f"unknown {kind} {self.name!r}; " + (f"known: {_join_names(known)}" if known else "there are none")
        )


class MissingExtra(RametError, ImportError):
    """A package that this feature needs is not installed; the message holds the line that installs it.

    `command` is that line, for this installation of ramet: `ramet.disk.installation.missing_extra` knows it.
    """

    def __init__(self, feature: str, extra: str, command: str | None = None) -> None:
        self.feature, self.extra = feature, extra
        command = command or self.command_from_index(extra)
        super().__init__(f"{feature} needs the extra {extra!r}; install it with: {command}")

    @staticmethod
    def command_from_index(extra: str) -> str:
        """Return the command that installs an extra of a ramet that came from a package index."""
        return f"pip install 'ramet[{extra}]'"


class BudgetExceeded(RametError):
    """A reservation that does not fit. `scope` is the path of the run whose limit fired."""

    def __init__(self, resource: str, *, asked: float, left: float, scope: str) -> None:
        self.resource, self.asked, self.left, self.scope = resource, asked, left, scope
        super().__init__(f"budget of {scope}: {resource} asked {asked:.12g}, left {left:.12g}")


class SpawnRefused(RametError):
    """A spawn that was refused. `limit` names the limit that prevented it, `free` what is left of that limit now."""

    def __init__(self, limit: str, reason: str, *, free: float | None = None) -> None:
        self.limit, self.reason, self.free = limit, reason, free
        super().__init__(f"spawn refused ({limit}): {reason}" + ("" if free is None else f"; free now: {free:.12g}"))


class PolicyAdapterFailed(SpawnRefused):
    """A policy adapter gave no answer in time, or no usable answer; nothing was spawned."""


class OverCapacity(SpawnRefused):
    """A team has no room for another agent now.

    `resource` names the short resource, `room` is what is free of every resource.
    """

    def __init__(self, team: str, resource: str, *, asked: float, room: Mapping[str, float]) -> None:
        self.team, self.resource, self.asked, self.room = _truncate(team), resource, asked, dict(room)
        free = room.get(resource, 0.0)
        super().__init__(resource, f"team {self.team!r} has less free than the requested {asked:.12g}", free=free)


class NotYours(RametError, LookupError):
    """An object that this key cannot open: a missing object and another owner's object look the same."""

    def __init__(self, kind: str, name: str) -> None:
        self.kind, self.name = kind, _truncate(name)
        subject = f"{kind} {self.name!r}" if name else kind
        super().__init__(f"there is no {subject} that this key may access")


class MailRefused(RametError):
    """Mail that was not accepted.

    The sender receives the reason and may act on it.
    """

    def __init__(self, to: str, reason: str) -> None:
        self.to, self.reason = _truncate(to), reason
        super().__init__(f"mail to {self.to!r} refused: {reason}")


class Denied(RametError):
    """A gate (hook, approval, permission) denied an action, or could not answer, which counts as a denial."""

    def __init__(self, what: str, reason: str) -> None:
        self.what, self.reason = what, reason
        super().__init__(f"{what} denied: {reason}")


class Aborted(RametError):
    """Work that was stopped. `reason` is the reason given by the stopping party."""

    def __init__(self, reason: str = "aborted") -> None:
        self.reason = reason
        super().__init__(reason)


class ModelFailed(RametError):
    """A provider did not answer; never a finding of an agent. `retryable` says whether a new request may help.

    `retry_after_s` is the wait that the provider requested, if any. `unsent` says that no provider can have received
    the request, so that it cost nothing.
    """

    unsent: bool = False

    def __init__(
        self,
        model: str,
        reason: str,
        *,
        status: int | None = None,
        retryable: bool = False,
        retry_after_s: float | None = None,
        unsent: bool = False,
    ) -> None:
        self.model, self.reason, self.status = model, reason, status
        if unsent:  # Known where the request is made, and not sent to guests.
            self.unsent = True
        self.retryable, self.retry_after_s = retryable, retry_after_s
        super().__init__(f"{model}: {reason}" + (f" (HTTP {status})" if status else ""))


class OutputInvalid(RametError):
    """A final answer that does not fit the agreed schema, after the retries that were allowed."""

    def __init__(self, problem: str, *, tries: int) -> None:
        self.problem, self.tries = problem, tries
        super().__init__(f"the final answer does not fit its schema after {tries} tries: {problem}")


class StepFailed(RametError):
    """A step of a composition that ended without a value, or with a value of another type than it promises."""

    def __init__(self, step: str, *, status: str, path: str, reason: str) -> None:
        self.step, self.status, self.path, self.reason = step, status, path, reason[:2_000]
        super().__init__(f"step {step!r} ({path}) ended {status}: {self.reason}")


class StepsExceeded(RametError):
    """A graph that executed its maximum number of steps and has not ended.

    `node` would have been the next.
    """

    def __init__(self, graph: str, *, node: str, max_steps: int) -> None:
        self.graph, self.node, self.max_steps = graph, node, max_steps
        super().__init__(f"{graph} has reached its limit of {max_steps} steps; {node!r} would have been the next")


class NoToolsLeft(RametError):
    """An agent whose tool list resolved to nothing. `entries` are the names that matched no tool."""

    def __init__(self, agent: str, entries: tuple[str, ...]) -> None:
        self.agent, self.entries = agent, entries
        super().__init__(
            f"agent {agent!r}: none of its tools exist here or all are denied: {_join_names(entries)}. Pass them to "
            "the session, as in tools=[*workspace_tools(), …]"
        )


class ProtocolError(RametError):
    """The other end of a channel violated the protocol; the channel is closed."""


class NotShippable(RametError):
    """A function, argument or result that cannot be transferred between host and sandbox, with the remedy."""

    def __init__(self, what: str, why: str, remedy: str) -> None:
        self.what, self.why, self.remedy = _truncate(what), why, remedy
        super().__init__(f"{self.what} cannot be sent: {why}; {remedy}")


class OutputTooLarge(RametError):
    """A run left more than its limit; nothing of it was taken.

    `what` names the kind, in the unit of the limit. If counting stopped at the limit, `size` is the amount that was
    counted.
    """

    def __init__(self, what: str, *, size: int, limit: int, remedy: str = "") -> None:
        self.what, self.size, self.limit = what, size, limit
        super().__init__(f"{what}: {size} were left, at most {limit} are taken{'; ' if remedy else ''}{remedy}")


class Damaged(RametError):
    """Data on disk that is incomplete, or of a newer version.

    The data is left unchanged and is not used.
    """

    def __init__(self, what: str, where: object, why: str) -> None:
        self.what, self.where, self.why = what, str(where), why
        super().__init__(f"{what} in {where} cannot be used: {why}")


class DamagedTree(Damaged):
    """A tree of a journal that cannot be read; the other trees are not affected.

    `cursor` is the cursor of the damaged event; None if the tree's document is damaged, or the table that holds its
    events.
    """

    def __init__(self, tree: str, where: object, why: str, *, cursor: int | None = None) -> None:
        self.tree, self.cursor = _truncate(tree), cursor
        label = f"event {cursor} of tree" if cursor is not None else "tree"
        super().__init__(f"{label} {self.tree}", where, why)
        remedy = f"Other trees are not affected; set this one aside: ramet repair --set-aside {self.tree}"
        self.args = (f"{self.args[0]}. {remedy}",)


class StoreFailed(RametError):
    """The journal can no longer be written or read: no promise made since then can be kept."""

    def __init__(self, where: object, why: str) -> None:
        self.where, self.why = str(where), why
        super().__init__(f"the store {_truncate(self.where)} failed: {why}")


class StoreInUse(RametError):
    """Another kernel writes to this store.

    `holder` identifies that kernel, as far as it is known: "pid 1234".
    """

    def __init__(self, where: object, holder: str) -> None:
        self.where, self.holder = str(where), holder
        super().__init__(f"the store {_truncate(self.where)} belongs to another kernel ({holder})")


class OwnedElsewhere(RametError):
    """A tree that another kernel owns; nothing was done here.

    `address` is where that kernel answers, if it published an address.
    """

    def __init__(self, tree: str, kernel: str, address: str = "") -> None:
        self.tree, self.kernel, self.address = _truncate(tree), _truncate(kernel), address
        with_owner = f"it belongs to kernel {self.kernel!r}"  # No address: callers read this; kernels listen inside.
        without_owner = "another kernel took it over, and has released it since"
        super().__init__(
            f"tree {self.tree!r} does not belong to this kernel: {with_owner if kernel else without_owner}"
        )


class Conflict(RametError):
    """A document does not have the expected version, because another writer was first; nothing was written."""

    def __init__(self, kind: str, key: str, *, expected: int, found: int) -> None:
        self.kind, self.key, self.expected, self.found = kind, _truncate(key), expected, found
        difference = f"of version {found}, not {expected}" if found != expected else f"another one of version {found}"
        super().__init__(f"{kind} {self.key!r} is {difference}: it was changed meanwhile")


class MergeConflict(Conflict):
    """Both sides of a merge changed the same keys of a state differently, and no resolution was given.

    Nothing was written.
    """

    def __init__(self, kind: str, key: str, keys: tuple[str, ...], *, expected: int, found: int) -> None:
        super().__init__(kind, key, expected=expected, found=found)
        self.keys = keys
        self.args = (f"{kind} {self.key!r}: both sides changed {_join_names(keys)}; decide with resolve=",)


class UnsavedChanges(RametError):
    """A state has uncommitted changes that the requested operation would lose or cannot commit."""

    def __init__(self, keys: tuple[str, ...], why: str, remedy: str) -> None:
        self.keys, self.why, self.remedy = keys, why, remedy
        super().__init__(f"{why} ({_join_names(keys) or 'no keys'}): {remedy}")


class DefinitionMissing(RametError, LookupError):
    """A run of the journal needs an object that only a process can supply: a model object, a tool, a closure."""

    def __init__(self, kind: str, name: str) -> None:
        self.kind, self.name = kind, _truncate(name)
        super().__init__(f"the journal names {kind} {self.name!r}, which cannot be found here; supply it to resume")


class TaskFailed(RametError):
    """An agent cannot do its task: the agent reports this itself, or its run ended so. `run` is its id."""

    def __init__(self, reason: str, *, task: str = "", status: str = "failed", run: str = "") -> None:
        self.reason, self.task, self.status, self.run = reason, task, status, run
        super().__init__(f"{_truncate(task)}: {reason}" if task else reason)


class McpServerFailed(RametError):
    """A server of the Model Context Protocol that ended, broke the protocol, or did not answer in time."""

    def __init__(self, server: str, reason: str) -> None:
        self.server, self.reason = server, reason
        super().__init__(f"the MCP server {_truncate(server)!r} failed: {reason}")


class McpPackageFailed(RametError):
    """A package of an MCP server that could not be installed, or not exactly as its lock says."""

    def __init__(self, package: str, reason: str) -> None:
        self.package, self.reason = package, reason
        super().__init__(f"the package {_truncate(package)!r} is not installed: {reason}")


class NeedsInput(RametError):
    """An agent asks a question before it can continue.

    The answer is given with `token`, in any process.
    """

    def __init__(self, question: str, *, token: str = "") -> None:
        self.question, self.token = question, token
        super().__init__(question)


class AgentNotResolved(RametError, LookupError):
    """A handle no longer resolves to its agent. `kind` and `name` say what is missing.

    A handle never resolves to another agent instead.
    """

    def __init__(self, handle: str, kind: str, name: str, why: str) -> None:
        self.handle, self.kind, self.name, self.why = handle, kind, _truncate(name), why
        super().__init__(f"the agent {_truncate(handle)!r} cannot be resolved: {kind} {self.name!r} {why}")


class IsolationUnavailable(RametError):
    """The requested isolation is stricter than this machine offers.

    `missing` names mechanisms, `remedy` a way to solve the problem.
    """

    def __init__(self, asked: str, offered: str, missing: tuple[str, ...], remedy: str) -> None:
        self.asked, self.offered, self.missing, self.remedy = asked, offered, missing, remedy
        super().__init__(
            f"isolation {asked} was requested and this machine offers {offered}; "
            f"missing: {', '.join(missing)}; {remedy}"
        )


class SandboxFailed(RametError):
    """A sandbox that could not be started, or whose zygote or machine was lost.

    The cause is ramet or the machine, never the guest.
    """


class Gone(RametError):
    """A sandbox to take over no longer exists: its process ended with the kernel that had started it."""


class Expired(RametError, LookupError):
    """A run of a tree that was kept for `keep_s` seconds after `ended`, and that time is over."""

    def __init__(self, run: str, ended: object, keep_s: float | None) -> None:
        self.run, self.ended, self.keep_s = _truncate(run), str(ended), keep_s
        super().__init__(f"run {self.run!r} ended at {ended} and was kept for {keep_s} seconds, which have passed")


class BusyError(RametError):
    """A second turn was requested of a run whose turn has not ended."""


def _truncate(name: str) -> str:
    return name[:200]


def _join_names(names: tuple[str, ...]) -> str:
    return ", ".join(map(_truncate, names[:20])) + (", …" if len(names) > 20 else "")
