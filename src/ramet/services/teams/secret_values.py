"""Values of an agent's variables and secrets: its row has the names, and a request to resume supplies the values."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from ramet.core.errors import InvalidValue
from ramet.core.policy import rights
from ramet.services.contract import SupplyValues
from ramet.services.errors import ValuesMissing
from ramet.services.teams.tables import AgentRow


def strip_secrets(row: AgentRow) -> AgentRow:
    """Return a row as it may be stored: with the names of secrets and variables, without their values."""
    policy, names = row.policy, tuple[str, ...]()
    if policy is not None:
        names = tuple(policy.env_vars or ())
        secrets = None if policy.secrets is None else dict.fromkeys(policy.secrets)
        policy = replace(policy, secrets=secrets, env_vars=None if names else policy.env_vars)
    return replace(row, policy=policy, env={}, env_names=tuple(row.env), policy_env_names=names)


def configured_values(row: AgentRow, secrets: Mapping[str, str], env_vars: Mapping[str, str]) -> SupplyValues:
    """Return the values of the server's configuration that a row names.

    Variables are configured for one agent, as `path:NAME`: a team chooses the names of its variables, and must not get
    the values of another team in that way.
    """
    agent_env = {
        key.removeprefix(f"{row.path}:"): value for key, value in env_vars.items() if key.startswith(f"{row.path}:")
    }
    names = _names(row)
    return SupplyValues(
        env={name: agent_env[name] for name in names["env"] if name in agent_env},
        env_vars={name: agent_env[name] for name in names["env_vars"] if name in agent_env},
        secrets={name: secrets[name] for name in names["secrets"] if name in secrets},
    )


def restore_secrets(row: AgentRow, values: SupplyValues) -> AgentRow:
    """Return a stored row with its values. Raises ValuesMissing, which names all that are missing."""
    missing = _missing(row, values)
    if any(missing.values()):
        raise ValuesMissing(row.path, missing)
    policy, names = row.policy, _names(row)
    if policy is not None and names["secrets"]:
        policy = replace(policy, secrets={name: values.secrets[name] for name in names["secrets"]})
    if policy is not None and names["env_vars"]:
        policy = replace(policy, env_vars={name: values.env_vars[name] for name in names["env_vars"]})
    return replace(row, policy=policy, env={**row.env, **{name: values.env[name] for name in names["env"]}})


def supplied_values(row: AgentRow, supplied: SupplyValues, configured: SupplyValues) -> SupplyValues:
    """Return the given values of a row, and the configured values for its other names.

    Raises InvalidValue, which shows no value, for a name that the row does not have, and for a missing value.
    """
    rights.variable_values("env", supplied.env)
    rights.variable_values("env_vars", supplied.env_vars)
    rights.secrets("secrets", supplied.secrets)
    merged = SupplyValues(
        env={**configured.env, **supplied.env},
        env_vars={**configured.env_vars, **supplied.env_vars},
        secrets={**configured.secrets, **supplied.secrets},
    )
    missing = _missing(row, merged)
    for field, names in _names(row).items():
        given_names = sorted(getattr(supplied, field))
        if missing[field] or not names.issuperset(given_names):
            accepted = f"a value of each of {', '.join(sorted(names))}" if names else "none: it had no such values"
            raise InvalidValue(field, given_names, accepted)
    return merged


def _missing(row: AgentRow, values: SupplyValues) -> dict[str, list[str]]:
    return {field: sorted(names - getattr(values, field).keys()) for field, names in _names(row).items()}


def _names(row: AgentRow) -> dict[str, frozenset[str]]:
    """Return the names in a row, by the field of the request that supplies their values."""
    secrets = row.policy.secrets if row.policy is not None else None
    return {
        "env": frozenset(row.env_names),
        "env_vars": frozenset(row.policy_env_names),
        "secrets": frozenset(secrets or ()),
    }
