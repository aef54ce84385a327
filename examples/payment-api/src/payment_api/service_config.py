"""Settings, from the YAML file that PAYMENT_API_CONFIG names."""

import os
from dataclasses import dataclass
from pathlib import Path

import yaml


@dataclass(frozen=True)
class Acquirer:
    base_url: str
    connect_timeout_ms: int
    read_timeout_ms: int
    max_attempts: int = 1


@dataclass(frozen=True)
class Database:
    host: str
    name: str
    pool_size: int
    acquire_timeout_ms: int
    statement_timeout_ms: int


@dataclass(frozen=True)
class Settings:
    environment: str
    acquirer: Acquirer
    database: Database
    raw: dict


def load(path: str | None = None) -> Settings:
    raw = yaml.safe_load(Path(path or os.environ["PAYMENT_API_CONFIG"]).read_text())
    return Settings(
        environment=raw["environment"],
        acquirer=Acquirer(**raw["acquirer"]),
        database=Database(**raw["database"]),
        raw=raw,
    )
