# `make demo` and `make test` are all that a newcomer needs; both install what is missing.
SHELL := /bin/bash
VENV := .venv
UV := 0.13.9
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed-$(shell cat requirements.lock pyproject.toml 2>/dev/null | sha256sum | cut -c1-16)

.PHONY: help install demo test e2e up down status lint gen lock clean
help: ## this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | sort | expand -t 12

install: $(STAMP) ## Python dependencies, pinned by hash, into .venv
$(STAMP): requirements.lock pyproject.toml
	test -x $(PY) || python3 -m venv $(VENV) || (apt-get update -qq && apt-get install -y -qq python3-venv && python3 -m venv $(VENV))
	$(PY) -m pip --version >/dev/null 2>&1 || $(PY) -m ensurepip >/dev/null
	$(PY) -m pip install --quiet --disable-pip-version-check --root-user-action=ignore "uv==$(UV)"
	$(PY) -m uv pip install --quiet --python $(PY) --require-hashes -r requirements.lock
	$(PY) -m uv pip install --quiet --python $(PY) --no-deps --editable .
	rm -f $(VENV)/.installed-* && touch $@

demo: install ## everything from nothing, then the story: promote, ask, canary, roll back, lose the control plane
	$(VENV)/bin/meridian up
	$(VENV)/bin/meridian demo

up: install ## the embedded cluster with everything in it
	$(VENV)/bin/meridian up

down: install ## ends what `up` started, leaves nothing behind
	$(VENV)/bin/meridian down

status: install ## what runs
	$(VENV)/bin/meridian status

gen: install ## CRDs and sample content from their sources
	$(PY) -m meridian_api.generate
	$(PY) crds/samples/build_content.py

lint: install ## format, lint, types, import contracts, generated files
	$(VENV)/bin/ruff check .
	$(VENV)/bin/basedpyright --level error
	$(VENV)/bin/lint-imports
	$(PY) -m meridian_api.generate --check
	$(PY) crds/samples/build_content.py --check

test: install lint ## everything that needs no node: real kube-apiserver, real PostgreSQL
	$(PY) -m meridian_cluster.toolchain etcd-server
	$(PY) -m meridian_cluster.binaries kube-apiserver helm
	$(PY) -m pytest

e2e: install ## stories and drills on the real node
	$(VENV)/bin/meridian up
	$(PY) -m pytest -m e2e e2e/stories -p no:randomly --timeout 1500 -v

lock: install ## re-resolve the pinned requirements
	$(PY) -m uv pip compile --quiet --all-extras --python-version 3.11 --generate-hashes --no-header --no-emit-index-url pyproject.toml -o requirements.lock

clean: ## build outputs of this checkout
	rm -rf build dist crds/samples/support
