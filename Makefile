# Two commands set everything up: `make demo` (train for real) and `make test`.
#   PYTHON=python3.12        which Python makes the environment (3.11 or newer; default: the first found)
#   TORCH_INDEX=https://...  index to take torch from, e.g. one with CPU builds only
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
CANDIDATES := python3 python3.11 python3.12 python3.13
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in $(CANDIDATES); do $$p -c "$(NEW_ENOUGH)" >/dev/null 2>&1 && echo $$p && break; done)
RECIPE ?= recipes/lyrics.yaml

.PHONY: demo test check format clean help

help:
	@echo "make demo    install, then train on Chinese lyrics: a loss curve in about two minutes"
	@echo "make test    install with what tests need, then run all tests"
	@echo "make check   style, types, directions between rooms, messages in both languages"
	@echo "make format  let ruff mend what it can"

demo: $(VENV)/.installed
	$(BIN)/trireme train $(RECIPE) --overwrite
	@echo "To use trireme in this shell: . $(BIN)/activate"

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest

check: $(VENV)/.installed-dev
	VENV=$(VENV) .ci/check

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

$(VENV)/.python:
	@test -n "$(PYTHON)" && $(PYTHON) -c "$(NEW_ENOUGH)" || { \
	  echo "Trireme needs Python 3.11 or newer; '$(or $(PYTHON),python3)' is not. Name one: make PYTHON=/path/to/python3.11 ..." >&2; \
	  echo "需要 Python 3.11 或更高版本；请指定：make PYTHON=/path/to/python3.11 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV) || { \
	  echo "This Python can't make environments; on Debian and Ubuntu: apt install python3-venv" >&2; \
	  echo "该 Python 无法创建虚拟环境；Debian/Ubuntu 请先执行：apt install python3-venv" >&2; exit 1; }
	@touch $@

# torch first and alone: it is by far the largest, and may come from an index of its own.
$(VENV)/.torch: $(VENV)/.python constraints.txt
	$(PIP) install -c constraints.txt $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch
	@touch $@

$(VENV)/.installed: $(VENV)/.torch pyproject.toml
	$(PIP) install -c constraints.txt -e .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.torch pyproject.toml
	$(PIP) install -c constraints.txt -e '.[dev]'
	@touch $@ $(VENV)/.installed
