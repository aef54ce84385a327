"""The programs of external agents, as a tree asks for them: found on this machine, configured, ready to be packed."""

from __future__ import annotations

from ramet.agent.external.external import External
from ramet.agent.external.program_policy import Needs, Program
from ramet.core.errors import InvalidValue
from ramet.guest.external.run_external import run_external
from ramet.host.external.locate import Location, find, locate
from ramet.host.external.presets import PRESETS, Candidate, Choice, Preset, choice_of
from ramet.host.external.tool_configuration import with_tree_tools
from ramet.wire.external_program import ProgramStart

#: Of a program that says nothing.
_DEFAULT_NEEDS = Needs(memory_mb=1024, pids=256)


class ProgramFinder:
    """A finder of programs: it reads PATH each time, so that one may be installed while the kernel works."""

    run = staticmethod(run_external)

    def find(self, external: External, model: str | None) -> Program:
        """Return the program of a definition. Raises InvalidValue if it is not found, or cannot ask the model."""
        if external.preset:
            return _known(external, PRESETS[external.preset], model)
        location = locate(tuple(external.command))
        models = external.models or ((model,) if model is not None else ())
        return Program(
            start=ProgramStart(
                command=location.command,
                protocol=external.protocol,
                env=dict(external.env),
                files=dict(external.files),
                permission_mode=external.permission_mode,
            ),
            mounts=(*location.mounts, *external.mounts),
            models=tuple(models),
            needs=_needs(external, _DEFAULT_NEEDS),
        )


def _known(external: External, preset: Preset, model: str | None) -> Program:
    choice = choice_of(external.preset, preset, model)
    candidate, location = _candidate(external, preset)
    mode = external.permission_mode
    if mode == "ask" and not candidate.can_ask:
        first, allowed = preset.candidates[0], f'External(preset="{external.preset}", permission_mode="allow")'
        expected = (
            f"{first.executable} in PATH (npm install -g {first.package}), since {candidate.executable} alone asks "
            f"nobody, or an agent of your own with {allowed}"
        )
        raise InvalidValue("external.permission_mode", mode, expected)
    arguments = external.command[1:] or candidate.arguments(choice, mode)
    files, tree_files = preset.files(choice, mode), None
    if candidate.protocol != "acp":  # No session brings it the tools of the tree.
        tree_files = with_tree_tools(external.preset, files, has_user=False) | dict(external.files)
    return Program(
        start=ProgramStart(
            command=(*location.command, *arguments),
            protocol=candidate.protocol,
            env=preset.env(choice) | dict(candidate.env) | dict(external.env),
            files=files | dict(external.files),
            permission_mode=mode,
        ),
        tree_files=tree_files,
        mounts=(*location.mounts, *external.mounts),
        models=tuple(external.models) or _models(preset, choice),
        needs=_needs(external, Needs(candidate.memory_mb, candidate.pids)),
    )


def _candidate(external: External, preset: Preset) -> tuple[Candidate, Location]:
    if external.command:
        location = locate(tuple(external.command[:1]))
        same = (each for each in preset.candidates if each.protocol == external.protocol)
        return next(same, preset.candidates[0]), location
    for candidate in preset.candidates:
        if (found := find(candidate.executable)) is not None:
            return candidate, found
    names = " or ".join(each.executable for each in preset.candidates)
    accepted = f"a program that is installed: {names} in PATH (npm install -g {preset.candidates[0].package})"
    raise InvalidValue("external", external.preset, accepted)


def _models(preset: Preset, choice: Choice) -> tuple[str, ...]:
    if choice.name:
        return (f"{choice.provider}:{choice.name}",)
    return tuple(f"{each}:*" for each in preset.providers)


def _needs(external: External, usual: Needs) -> Needs:
    return Needs(external.memory_mb or usual.memory_mb, external.pids or usual.pids)
