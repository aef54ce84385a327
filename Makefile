# On a bare Debian 12 (python3, make, root) `make demo` and `make test` do all the set-up themselves.

PYTHON ?= python3
BIN    := .venv/bin
READY  := .venv/.ready
ARGS   ?=

export DEBIAN_FRONTEND := noninteractive
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1

# $(call apt,packages): as root on Debian they are installed; elsewhere one line says what is missing.
apt = if command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
	  echo "== apt-get install $(1)"; apt-get update -qq && apt-get install -y -qq --no-install-recommends $(1); \
	else echo "missing: $(1). Install with the package manager of this system." >&2; false; fi

.PHONY: help setup tools demo check test format bench clean
.DEFAULT_GOAL := help

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) tools ## .venv with the pinned packages, and git and ripgrep (the other targets call it)

demo: $(READY) ## agents explain why a payment API fails: no key, no network
	$(BIN)/ramet ask "Why is the payment API failing?" --dir examples/payment-api

check: setup ## format, lint, types, layers and fast tests, under a minute
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/pytest tests/unit tests/architecture -q -x -m "not slow and not bench"

test: setup ## every test
	$(BIN)/pytest -m "not bench" $(ARGS)

format: $(READY) ## rewrite the sources the way `make check` wants them
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup ## measure; see docs/performance.md
	$(BIN)/python -m benchmarks $(ARGS)

clean: ## remove what these targets made
	rm -rf .venv .cache .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build dist

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "ramet needs Python 3.11 or newer and $(PYTHON) is not: make PYTHON=python3.11 …" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { $(call apt,python3-venv); }
	@echo "== .venv: the packages of constraints.txt (a minute or two, once)"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -c constraints.txt -e '.[dev]'
	@touch $@

tools:  # git for worktrees, ripgrep for the grep tool; tests that need one they cannot get say so
	@missing=""; command -v git >/dev/null || missing="git"; command -v rg >/dev/null || missing="$${missing:+$$missing }ripgrep"; \
	if [ -n "$$missing" ]; then { $(call apt,$$missing); } || echo "== going on without: $$missing" >&2; fi
