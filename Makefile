# On a bare Debian 12 (python3, make, root) `make demo` and `make test` do all the set-up themselves.

PYTHON ?= python3
BIN    := .venv/bin
READY  := .venv/.ready
SITE_READY := .venv/.site-ready
ARGS   ?=
JOBS   ?= 4
ROUNDS ?= 200
MINUTES ?= 25
SINCE  ?=
FAST   ?= $$($(BIN)/python -m tests.support.affected $(SINCE))
SEED   ?= 2
SANDBOXES ?= all
AGENTS ?= claude-code codex gemini-cli opencode claude-agent-acp codex-acp

export DEBIAN_FRONTEND := noninteractive
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1
# Bytecode is kept, also where the environment says otherwise: tests start hundreds of interpreters, and each would compile ramet.
export PYTHONDONTWRITEBYTECODE :=
# SANDBOXES=one: each test that has several sandboxes runs in one of them (tests/support/one_of_sandboxes.py).
export RAMET_TEST_SANDBOXES := $(SANDBOXES)

# $(call apt,packages): as root on Debian they are installed; elsewhere one line says what is missing.
apt = if command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
	  echo "== apt-get install $(1)"; apt-get update -qq && apt-get install -y -qq --no-install-recommends $(1); \
	else echo "missing: $(1). Install with the package manager of this system." >&2; false; fi

# Debian's package makes a database cluster and starts it, unless told not to beforehand; whoever decided that stays obeyed.
CREATECLUSTER := /etc/postgresql-common/createcluster.conf
no_cluster = if command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ] && ! grep -qs '^create_main_cluster' $(CREATECLUSTER); then \
	  mkdir -p $(dir $(CREATECLUSTER)) && echo 'create_main_cluster = false' >>$(CREATECLUSTER); fi; export UCF_FORCE_CONFFOLD=1

# The same of its registry, etcd and containerd, which tests start by themselves: $(call no_unit,name) masks a unit before its
# package comes, unless there is one already.
UNITS := /etc/systemd/system
no_unit = if command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ] && [ ! -e $(UNITS)/$(1).service ] && [ ! -L $(UNITS)/$(1).service ]; then \
	  mkdir -p $(UNITS) && ln -s /dev/null $(UNITS)/$(1).service; fi

# What tests/cluster/cluster.sh runs, by package; what it has none of to run is only there to be installed.
CLUSTER := etcd:etcd-server containerd:containerd runc:runc docker-registry:docker-registry skopeo:skopeo umoci:umoci \
  iptables:iptables conntrack:conntrack ip:iproute2 jq:jq curl:curl openssl:openssl xz:xz-utils gcc:gcc kubectl:kubernetes-client \
  /usr/lib/cni/bridge:containernetworking-plugins /usr/include/stdio.h:libc6-dev

.PHONY: help setup python tools cluster-tools demo lint check test test-kubernetes test-agents chaos packages mutants format docs pictures bench bench-compare soak clean
.DEFAULT_GOAL := help

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) tools ## .venv with the pinned packages, and git, ripgrep, bubblewrap, PostgreSQL, a container registry and Chromium (the other targets call it)

demo: $(READY) ## agents explain why a payment API fails: no key, no network
	$(BIN)/ramet ask "Why is the payment API failing?" --dir examples/payment-api
	@echo "== the same in a browser: $(BIN)/ramet ui --dir examples/payment-api"

lint: $(READY) ## format, lint, types, layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --num-workers 2
	$(BIN)/lint-imports --no-logo

check: setup lint ## `make lint`, and the fast tests that a change concerns, of the working tree or SINCE a revision
	$(BIN)/pytest -n $(JOBS) $(FAST) -q -x -m "not slow and not bench"

test: setup ## every test but those of test-agents, JOBS (4) at a time; SANDBOXES=one: each in one of its sandboxes
	$(BIN)/pytest -n $(JOBS) -m "not bench and not chaos and not agents" $(ARGS)

test-kubernetes: setup cluster-tools ## tests with pods: on a cluster of their own, or with KUBECONFIG and REGISTRY on yours
	tests/cluster/cluster.sh run $(BIN)/pytest -n 3 -m kubernetes tests/kubernetes $(ARGS)

test-agents: setup ## tests with the programs of other makers, which it installs once below .cache; AGENTS="codex" for some
	@echo "== .cache/agents: $(AGENTS), as pinned in tests/agents/programs.toml (2.6 GB for all, two minutes, once)"
	$(BIN)/python -m tests.agents.install $(AGENTS)
	$(BIN)/pytest -n 2 -m agents tests/agents $(ARGS)

chaos: setup ## kill kernels in ROUNDS rounds (200), at moments that SEED draws, and look at what they leave
	RAMET_CHAOS_ROUNDS=$(ROUNDS) RAMET_CHAOS_SEED=$(SEED) $(BIN)/pytest -n $(JOBS) -m chaos tests/chaos $(ARGS)

packages: setup ## wheel and sdist in dist/, used by a stranger with each Python of this machine; ARGS="python3.12" for one
	$(BIN)/python -m tests.packages.check $(ARGS)

mutants: setup ## remove each layer of the sandbox in turn, in a copy: which tests notice; ARGS="words of names" for some
	$(BIN)/python -m tests.security.mutants $(ARGS)

format: $(READY) ## rewrite the sources the way `make check` wants them
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(SITE_READY) ## build the site in build/site: open build/site/index.html in a browser; a broken link fails
	@rm -rf build/site
	$(BIN)/python -m sphinx -q -W --keep-going -E -b html -c docs/site -d build/site-cache docs build/site
	@echo "== build/site/index.html"

pictures: setup ## record the terminal casts and the pictures of the page in docs/ again
	$(BIN)/python -m tests.docs.casts
	$(BIN)/python -m tests.web.pictures

bench: setup ## measure; see docs/design/performance.md
	$(BIN)/python -m benchmarks $(ARGS)

bench-compare: setup ## measure this tree and the commit BASE in turn; ARGS="turn child --rounds 3" for some of it
	@test -n "$(BASE)" || { echo "which commit? make bench-compare BASE=HEAD~5" >&2; exit 1; }
	$(BIN)/python -m benchmarks.compare $(BASE) $(ARGS)

soak: setup ## serve for MINUTES (25) under mixed load, faults and restarts: what was lost, what grew; ARGS="--seed 3"
	$(BIN)/python -m benchmarks.soak --minutes $(MINUTES) $(ARGS)

clean: ## remove what these targets made
	rm -rf .venv .cache .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build dist
	find src tests benchmarks examples -name __pycache__ -prune -exec rm -rf {} +

python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "ramet needs Python 3.11 or newer and $(PYTHON) is not: make PYTHON=python3.11 …" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { $(call apt,python3-venv); }

$(READY): pyproject.toml constraints.txt | python
	@echo "== .venv: the packages of constraints.txt (a minute or two, once)"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -c constraints.txt -e '.[dev,ui-test]'
	@touch $@

$(SITE_READY): $(READY)
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[docs]'
	@touch $@

# One after the other, and beside pip: apt-get has one lock, and waits for the network as pip does.
tools: | python  # git for worktrees, ripgrep for the grep tool, bubblewrap for sandboxes, PostgreSQL for its journal, a registry and skopeo
# for images, curl for the lines of docs/guides/services.md, Chromium for the page; tests say if one is missing
	@missing=""; command -v git >/dev/null || missing="git"; command -v rg >/dev/null || missing="$${missing:+$$missing }ripgrep"; \
	command -v bwrap >/dev/null || missing="$${missing:+$$missing }bubblewrap"; \
	command -v curl >/dev/null || missing="$${missing:+$$missing }curl"; \
	command -v chromium >/dev/null || missing="$${missing:+$$missing }chromium"; \
	command -v skopeo >/dev/null || missing="$${missing:+$$missing }skopeo"; \
	command -v docker-registry >/dev/null || { missing="$${missing:+$$missing }docker-registry"; $(call no_unit,docker-registry); }; \
	if ! command -v initdb >/dev/null && ! ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1; then \
	  missing="$${missing:+$$missing }postgresql"; $(no_cluster); fi; \
	if [ -n "$$missing" ]; then { $(call apt,$$missing); } || echo "== going on without: $$missing" >&2; fi

cluster-tools: | tools
	@missing=""; [ -n "$$KUBECONFIG" ] || ! tests/cluster/cluster.sh kube >/dev/null 2>&1 || for each in $(CLUSTER); do what=$${each%%:*}; package=$${each#*:}; \
	  [ -e "$$what" ] || PATH=$$PATH:/usr/sbin:/sbin command -v "$$what" >/dev/null && continue; missing="$$missing $$package"; \
	  case $$what in etcd|containerd|docker-registry) $(call no_unit,$$what);; esac; done; \
	if [ -n "$$missing" ]; then { $(call apt,$$missing); } || true; fi
