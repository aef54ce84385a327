"""The names of spans and attributes: OpenTelemetry's GenAI conventions (v1.41.1), and ramet's own under `ramet.`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from ramet.core.errors import RametError
from ramet.models.resolve import parse

OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
CONVERSATION_ID: Final = "gen_ai.conversation.id"
ERROR_TYPE: Final = "error.type"

AGENT_ID: Final = "gen_ai.agent.id"
AGENT_NAME: Final = "gen_ai.agent.name"

REQUEST_MODEL: Final = "gen_ai.request.model"
RESPONSE_MODEL: Final = "gen_ai.response.model"
RESPONSE_ID: Final = "gen_ai.response.id"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"

INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
CACHE_READ_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"

TOOL_NAME: Final = "gen_ai.tool.name"
TOOL_TYPE: Final = "gen_ai.tool.type"
TOOL_CALL_ID: Final = "gen_ai.tool.call.id"

#: Values of `gen_ai.operation.name`, and the first word of a span's name.
INVOKE_AGENT: Final = "invoke_agent"
CREATE_AGENT: Final = "create_agent"
EXECUTE_TOOL: Final = "execute_tool"
CHAT: Final = "chat"
#: The conventions have no turn: its span has ramet's own name and no `gen_ai.operation.name`.
TURN: Final = "turn"
#: The value of `error.type` without a more specific one, as in the conventions.
OTHER: Final = "_OTHER"

# Names that the conventions do not define.
ROOT: Final = "ramet.root.id"
PARENT: Final = "ramet.parent.id"
PATH: Final = "ramet.path"
DEPTH: Final = "ramet.depth"
MODE: Final = "ramet.mode"
BACKGROUND: Final = "ramet.background"
DETACHED: Final = "ramet.detached"
RESUMED: Final = "ramet.resumed"  #: it continued: after mail, or in another process than the one that began it
STATUS: Final = "ramet.status"
TURN_NUMBER: Final = "ramet.turn"
STEP_ID: Final = "ramet.step_id"
ATTEMPT: Final = "ramet.attempt"
RESERVED_TOKENS: Final = "ramet.reserved_tokens"
USD: Final = "ramet.usage.usd"
ESTIMATED: Final = "ramet.usage.estimated"

#: Provider names of LangChain, and of the conventions; any other provider keeps its name.
PROVIDERS: Final[Mapping[str, str]] = {
    "anthropic": "anthropic",
    "anthropic_bedrock": "aws.bedrock",
    "azure_ai": "azure.ai.inference",
    "azure_openai": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "bedrock_converse": "aws.bedrock",
    "google_anthropic_vertex": "gcp.vertex_ai",
    "google_genai": "gcp.gemini",
    "google_vertexai": "gcp.vertex_ai",
    "ibm": "ibm.watsonx.ai",
    "mistralai": "mistral_ai",
    "xai": "x_ai",
}


class Model(NamedTuple):
    """A model with the names of the conventions."""

    provider: str
    name: str


@lru_cache(maxsize=256)
def model_of(label: str) -> Model:
    """Return the model that an event names. An unknown model (a local one, a scripted one) is its own provider."""
    try:
        provider, name = parse(label)
    except RametError:
        return Model(label, label)
    return Model(PROVIDERS.get(provider, provider), name)
