"""What an agent of the type "llm" has beside what its record knows: a model that was set, bundles that were loaded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from langchain_core.tools import BaseTool

from ramet.agent.files.search_paths import SearchPath, plugin_places
from ramet.agent.files.skills import load_skills, render_skills
from ramet.core.policy.capabilities import Capability
from ramet.disk.state_folder import state_folder
from ramet.host.runtime import AgentRuntime
from ramet.host.trees import reconfigure
from ramet.host.trees.reconfigure import Equipment
from ramet.services.agent_types import imports
from ramet.services.contract import AgentSpec, CodeTool, LoadableBundle
from ramet.spawn.run import Run
from ramet.tools.python import NAME as PYTHON
from ramet.tools.workers.image_tools import imported_tool

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel


SKILLS = "skills"


class AgentSettings:
    """Of one run. A turn under way goes on with what it began with."""

    def __init__(self, opening: AgentSpec, run: Run) -> None:
        self._opening, self._run = opening, run
        self._equipment = Equipment(run)

    @property
    def tools(self) -> Sequence[BaseTool]:
        """What its next turn has."""
        return self._equipment.tools

    def check(self, bundle: LoadableBundle) -> None:
        """Whether its tools could be had beside those that there are. Raises InvalidValue."""
        self._opening.rules.check_tools("bundle", [each.reference for each in bundle.tools])
        self._equipment.check(code_tools(bundle.tools))

    def put_on(self) -> None:
        """Have from the next turn on what is loaded now, and no more."""
        shelf, info = self._opening.shelf, self._opening.info
        if shelf is None:
            return
        place = plugin_places([shelf.folder], SKILLS)
        skills = load_skills([name for bundle in shelf.loaded for name in bundle.skills], place)
        code: Sequence[Capability] = ()
        if PYTHON in info.tools and info.modules is None:
            code = tuple(Capability("module", each) for each in imports.top_level([shelf.folder]))
        tools = code_tools(tool for bundle in shelf.loaded for tool in bundle.tools)
        self._equipment.put_on(tools, render_skills(skills), code)

    def restore(self, model: str | BaseChatModel | None) -> None:
        """Have what it had in an earlier life: the model that was set, and what is loaded. Raises like `set_model`."""
        if model is not None:
            reconfigure.set_model(self._run, model, self._opening.runtime.gateway)
        self.put_on()


def code_tools(declared: Iterable[CodeTool]) -> tuple[BaseTool, ...]:
    """As a model sees them, and a sandbox runs them."""
    return tuple(imported_tool(each.module, each.name, each.description, each.schema) for each in declared)


def image_skills(opening: AgentSpec) -> tuple[SearchPath, ...]:
    """Where skills of its image lie: each of its folders is one of skills."""
    return tuple(place._replace(folder=each) for each in opening.image.skills for place in plugin_places([each], ""))


def served_skills(runtime: AgentRuntime) -> tuple[SearchPath, ...]:
    """Where the operator offers skills to all agents: `.ramet/skills` of the served folder, unless that is a home's."""
    if runtime.working_dir is None:
        return ()
    folder = state_folder(runtime.working_dir)
    if runtime.user_dir is not None and folder.resolve() == runtime.user_dir.resolve():
        return ()
    return (SearchPath(folder / SKILLS, "project", folder / SKILLS),)
