"""Settings of an "llm" agent that its journal does not contain: the model that was set, and the loaded bundles."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from langchain_core.tools import BaseTool

from ramet.agent.files.search_paths import SearchPath, plugin_search_paths
from ramet.agent.files.skills import load_skills, render_listing
from ramet.core.policy.capabilities import Capability
from ramet.disk.state_folder import state_folder
from ramet.host.runtime import AgentRuntime
from ramet.host.trees import reconfigure
from ramet.host.trees.reconfigure import Equipment
from ramet.services.agent_types import imports
from ramet.services.contract import AgentSpec, CodeTool, LoadableBundle
from ramet.spawn.run import Run
from ramet.tools.python import NAME as PYTHON
from ramet.tools.skills.skill_tool import SkillTool, skill_tool
from ramet.tools.workers.image_tools import imported_tool

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel

SKILLS = "skills"
#: The kind of the documents with the name of the model that an agent was last set to, by the id of the agent.
MODEL: Final = "agent model"


class AgentSettings:
    """The settings of one run. A change takes effect from the next turn on."""

    def __init__(self, spec: AgentSpec, run: Run) -> None:
        self._spec, self._run = spec, run
        self._equipment = Equipment(run)
        #: of its definition; a bundle adds to them
        self._skills = [skill for tool in run.context.tools if isinstance(tool, SkillTool) for skill in tool.skills]

    @property
    def tools(self) -> Sequence[BaseTool]:
        return self._equipment.tools

    def check(self, bundle: LoadableBundle) -> None:
        """Check that the bundle's tools can be added to the present ones. Raises InvalidValue."""
        self._spec.rules.check_tools("bundle", [each.reference for each in bundle.tools])
        self._equipment.check(code_tools(bundle.tools))

    def apply(self) -> None:
        """Apply exactly the bundles that are loaded now, from the next turn on."""
        loaded_bundles, info = self._spec.loaded_bundles, self._spec.info
        if loaded_bundles is None:
            return
        search_paths = plugin_search_paths([loaded_bundles.folder], SKILLS)
        skills = load_skills([name for bundle in loaded_bundles.bundles for name in bundle.skills], search_paths)
        code: Sequence[Capability] = ()
        if PYTHON in info.tools and info.modules is None:
            code = tuple(Capability("module", each) for each in imports.top_level([loaded_bundles.folder]))
        tools = code_tools(tool for bundle in loaded_bundles.bundles for tool in bundle.tools)
        names = {each.name for each in skills}
        folders = [*(each.folder for each in skills), *(each for each in self._skills if each.name not in names)]
        reading = (skill_tool(folders),) if folders else ()
        self._equipment.set_additions((*tools, *reading), render_listing(skills), code)

    async def set_model(self, name: str, model: str | BaseChatModel) -> str:
        """Set and record the model of that name. Return its full name.

        Raises the errors of the model, StoreFailed, and OwnedElsewhere if another kernel owns the agent's tree.
        """
        full_name = reconfigure.set_model(self._run, model, self._spec.runtime.gateway)
        store = await self._spec.runtime.open_store()
        await store.put(MODEL, self._spec.id, name.encode(), tree=self._run.info.id)
        return full_name

    def restore(self, model: str | BaseChatModel | None) -> None:
        """Restore the settings of an earlier kernel: the model that was set, and the loaded bundles.

        Raises like `set_model`.
        """
        if model is not None:
            reconfigure.set_model(self._run, model, self._spec.runtime.gateway)
        self.apply()


def code_tools(declared_tools: Iterable[CodeTool]) -> tuple[BaseTool, ...]:
    """Return the declared tools as a model sees them and a sandbox runs them."""
    return tuple(imported_tool(each.module, each.name, each.description, each.schema) for each in declared_tools)


def image_skills(spec: AgentSpec) -> tuple[SearchPath, ...]:
    """Return the search paths of the image's skills: each skill folder of the image is one."""
    return tuple(
        search_path._replace(folder=each)
        for each in spec.image.skills
        for search_path in plugin_search_paths([each], "")
    )


def served_skills(runtime: AgentRuntime) -> tuple[SearchPath, ...]:
    """Return the search path of the operator's skills for all agents: `.ramet/skills` of the served folder.

    Empty without a working folder, and if the state folder is that of the user's home.
    """
    if runtime.working_dir is None:
        return ()
    folder = state_folder(runtime.working_dir)
    if runtime.user_dir is not None and folder.resolve() == runtime.user_dir.resolve():
        return ()
    return (SearchPath(folder / SKILLS, "project", folder / SKILLS),)
