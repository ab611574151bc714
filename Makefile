# One environment in .venv, made by uv from pinned requirements. BACKEND=cuda makes the one for NVIDIA GPUs.
PYTHON  ?= python3
BACKEND ?= cpu
BIN     := .venv/bin
UV      := .uv/bin/uv
STAMP   := .venv/.made-$(BACKEND)

.DEFAULT_GOAL := help
.PHONY: help install serve test test-fast check format openapi lock audit bench clean

help:  ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-11s %s\n", $$1, $$2}'

install: $(STAMP)  ## Make the environment (once; again only when the pins change)

serve: $(STAMP)  ## Serve on http://localhost:8000 (PROFILE=cpu|cpu-compiled|eager|compile|cudagraph|max)
	@$(BIN)/omnihear serve $(if $(PROFILE),--profile $(PROFILE))

test: $(STAMP)  ## Run every test, the real engine included
	@$(BIN)/python -m pytest

test-fast: $(STAMP)  ## Run the tests that need no model
	@$(BIN)/python -m pytest -m "not engine"

check: $(STAMP)  ## Formatting, lint, types, import rules, OpenAPI document
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python -m app.openapi --check docs/openapi.json

format: $(STAMP)  ## Format and mend what can be mended
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

openapi: $(STAMP)  ## Write docs/openapi.json anew
	@$(BIN)/python -m app.openapi docs/openapi.json

bench: $(STAMP)  ## Measure this service against stock vLLM on the same clips
	@$(BIN)/python -m benchmarks.serving

lock: $(UV)  ## Resolve the pins anew (pyproject.toml -> requirements/)
	@for backend in cpu cuda; do \
	  $(UV) pip compile --quiet --no-config --universal --python-version 3.11 --no-header --no-annotate \
	    --override requirements/overrides.txt --extra $$backend --extra dev pyproject.toml -o requirements/$$backend.txt || exit 1; \
	done

audit: $(UV)  ## Check the pins against PyPI's advisories (needs internet)
	@for backend in cpu cuda; do \
	  $(UV) tool run --from pip-audit==2.10.1 pip-audit --strict --disable-pip --no-deps -r requirements/$$backend.txt || exit 1; \
	done

clean:  ## Remove the environment
	rm -rf .venv .uv

$(UV): requirements/uv.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "omnihear needs Python 3.11 or newer; name one with PYTHON=python3.12")'
	@echo "omnihear: fetching uv"
	@$(PYTHON) -m venv .uv
	@.uv/bin/python -m pip install --quiet --disable-pip-version-check -r requirements/uv.txt
	@touch $@

$(STAMP): requirements/$(BACKEND).txt pyproject.toml $(UV)
	@echo "omnihear: making the environment in .venv (about 6 GB; once)"
	@$(UV) venv --quiet --clear --python $(PYTHON) .venv
	@$(UV) pip install --quiet --compile-bytecode --python $(BIN)/python --no-deps -r requirements/$(BACKEND).txt
	@$(UV) pip install --quiet --python $(BIN)/python --no-deps --editable .
	@touch $@
