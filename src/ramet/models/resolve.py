"""Resolve a model by its name: the names of LangChain's `init_chat_model`, from our own table, imported lazily.

`langchain` itself is not needed (it installs langgraph). Bare names are inferred in the same way, except "gemini…",
which is google_genai here: the package of the `google` extra, which supports Vertex too.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

from langchain_core.language_models import BaseChatModel
from pydantic import ValidationError

from ramet.core.errors import InvalidValue, MissingExtra, ModelFailed, Unknown
from ramet.disk.installation import missing_extra, packages_command
from ramet.models import retries

MAX_NAME: Final = 256


class Provider(NamedTuple):
    """The module of a provider's chat model, and the package that installs it."""

    module: str
    cls: str
    extra: str | None = None  #: an extra of ramet; otherwise the package is named after the module
    argument: str = "model"  #: the class's parameter for the model's name
    maker: str | None = None  #: a class method that creates the model, if the class itself is not called


PROVIDERS: Final[Mapping[str, Provider]] = {
    "anthropic": Provider("langchain_anthropic", "ChatAnthropic", "anthropic"),
    "anthropic_bedrock": Provider("langchain_aws", "ChatAnthropicBedrock"),
    "azure_ai": Provider("langchain_azure_ai.chat_models", "AzureAIChatCompletionsModel"),
    "azure_openai": Provider("langchain_openai", "AzureChatOpenAI", "openai"),
    "bedrock": Provider("langchain_aws", "ChatBedrock"),
    "bedrock_converse": Provider("langchain_aws", "ChatBedrockConverse"),
    "cohere": Provider("langchain_cohere", "ChatCohere"),
    "deepseek": Provider("langchain_deepseek", "ChatDeepSeek"),
    "fireworks": Provider("langchain_fireworks", "ChatFireworks"),
    "google_anthropic_vertex": Provider("langchain_google_vertexai.model_garden", "ChatAnthropicVertex"),
    "google_genai": Provider("langchain_google_genai", "ChatGoogleGenerativeAI", "google"),
    "google_vertexai": Provider("langchain_google_vertexai", "ChatVertexAI"),
    "groq": Provider("langchain_groq", "ChatGroq"),
    "huggingface": Provider("langchain_huggingface", "ChatHuggingFace", argument="model_id", maker="from_model_id"),
    "ibm": Provider("langchain_ibm", "ChatWatsonx", argument="model_id"),
    "mistralai": Provider("langchain_mistralai", "ChatMistralAI"),
    "nvidia": Provider("langchain_nvidia_ai_endpoints", "ChatNVIDIA"),
    "ollama": Provider("langchain_ollama", "ChatOllama"),
    "openai": Provider("langchain_openai", "ChatOpenAI", "openai"),
    "openrouter": Provider("langchain_openrouter", "ChatOpenRouter"),
    "perplexity": Provider("langchain_perplexity", "ChatPerplexity"),
    "together": Provider("langchain_together", "ChatTogether"),
    "upstage": Provider("langchain_upstage", "ChatUpstage"),
    "xai": Provider("langchain_xai", "ChatXAI"),
}

#: The short names of agent files, in November 2026.
ALIASES: Final[Mapping[str, str]] = {
    "sonnet": "anthropic:claude-sonnet-5-5",
    "opus": "anthropic:claude-opus-5-5",
    "haiku": "anthropic:claude-haiku-5-5",
}

_BARE: Final = (
    (("gpt-", "o1", "o3", "o4", "chatgpt", "text-davinci"), "openai"),
    (("claude",), "anthropic"),
    (("command",), "cohere"),
    (("accounts/fireworks",), "fireworks"),
    (("gemini",), "google_genai"),
    (("amazon.", "anthropic.", "meta."), "bedrock"),
    (("mistral", "mixtral"), "mistralai"),
    (("deepseek",), "deepseek"),
    (("grok",), "xai"),
    (("sonar",), "perplexity"),
    (("solar",), "upstage"),
)


class MissingPackage(MissingExtra):
    """The error for a provider whose package is no extra of ramet; the message has the install command."""

    def __init__(self, feature: str, package: str) -> None:
        super().__init__(feature, package)
        self.package = package
        # str() of an ImportError shows its `msg`.
        self.msg = f"{feature} needs a package; install it with: {packages_command([package])}"
        self.args = (self.msg,)


class ModelName(NamedTuple):
    """The parts of a model's name."""

    provider: str
    model: str


def resolve(name: str, *, parent_model: BaseChatModel | None = None, **kwargs: Any) -> BaseChatModel:
    """Return the model of a name: "provider:model", a bare model name, an alias, "offline" or "inherit".

    `kwargs` go to the provider's class. Its own retries are off: ramet's retries reserve each attempt. Raises
    MissingExtra, with the install command, if a package is missing. Raises Unknown for an unknown provider, and
    InvalidValue for an invalid name or argument. Raises ModelFailed if the class cannot be created (usually without a
    key).
    """
    name = _check_name(name)
    if name == "inherit":
        if parent_model is None:
            raise InvalidValue("model", name, "a model's name: there is no model to inherit")
        return parent_model
    if "max_retries" in kwargs:
        raise InvalidValue(
            "max_retries", kwargs["max_retries"], "nothing: retries are set by the RetryPolicy of the rate limiter"
        )
    if name == "offline":
        from ramet.models.research.model import OfflineResearcher

        return OfflineResearcher(**kwargs)
    provider, model = parse(name)
    entry = PROVIDERS[provider]
    cls = _import_class(f"the model provider {provider!r}", entry)
    no_retries = {"max_retries": retries.no_retries_value(cls)} if "max_retries" in cls.model_fields else {}
    return _create(name, cls, entry, {entry.argument: model, **no_retries, **kwargs})


def parse(name: str) -> ModelName:
    """Return the provider and its model. Raises Unknown if no table has the provider."""
    name = _check_name(name)
    name = ALIASES.get(name, name)
    prefix, colon, model = name.partition(":")
    provider = prefix.replace("-", "_").lower()
    if colon and provider in PROVIDERS:
        return ModelName(provider, _check_name(model))
    lower_name = name.lower()
    for prefixes, inferred_provider in _BARE:
        if lower_name.startswith(prefixes):
            return ModelName(inferred_provider, name)
    raise Unknown("model provider", prefix, (*PROVIDERS, *ALIASES, "offline"))


def model_name(model: BaseChatModel) -> str:
    """Return the name of a model for events and prices: its own, if it has one, otherwise that of its class."""
    for attribute in ("model_name", "model", "model_id", "deployment_name", "azure_deployment"):
        value = getattr(model, attribute, None)
        if isinstance(value, str) and value.strip():
            return value.strip().removeprefix("models/")[:MAX_NAME]
    return type(model).__name__


def _check_name(name: object) -> str:
    accepted = f"text of 1 to {MAX_NAME} printable characters, as in 'anthropic:claude-sonnet-5-5'"
    if not isinstance(name, str) or not name.strip() or len(name) > MAX_NAME or not name.isprintable():
        raise InvalidValue("model", name, accepted)
    return name.strip()


def _import_class(feature: str, entry: Provider) -> type[BaseChatModel]:
    package = entry.module.partition(".")[0]
    try:
        module = importlib.import_module(entry.module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != package:
            raise  # it is installed, but one of its dependencies is not: that error says more
        if entry.extra is not None:
            raise missing_extra(feature, entry.extra) from None
        raise MissingPackage(feature, package.replace("_", "-")) from None
    return cast("type[BaseChatModel]", getattr(module, entry.cls))


def _create(name: str, cls: type[BaseChatModel], entry: Provider, fields: dict[str, Any]) -> BaseChatModel:
    make: Callable[..., BaseChatModel] = getattr(cls, entry.maker) if entry.maker else cls
    try:
        return make(**fields)
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=False, include_input=False)  # The input has the key.
        text = "; ".join(_validation_text(each["loc"], each["msg"]) for each in details)[:300]
        if not any(each["loc"] for each in details):  # No argument is wrong: usually the key is missing.
            raise ModelFailed(name, f"{cls.__name__} cannot be created: {text}") from error
        raise InvalidValue(f"model {name!r}", sorted(fields), f"the arguments of {cls.__name__} ({text})") from error
    except ValueError as error:
        text = " ".join(str(error).split())[:300]
        raise InvalidValue(f"model {name!r}", sorted(fields), f"the arguments of {cls.__name__} ({text})") from error
    except Exception as error:
        text = " ".join(str(error).split())[:300]
        raise ModelFailed(name, f"{cls.__name__} cannot be created: {text}") from error


def _validation_text(location: Sequence[int | str], message: str) -> str:
    message = " ".join(message.removeprefix("Value error, ").split())
    return f"{'.'.join(map(str, location))}: {message}" if location else message
