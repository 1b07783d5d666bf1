# The two commands of the README. Each creates .venv at its first call and installs again only when pyproject.toml
# changes. A .venv that is there already is used as it is. `make PYTHON=/path/to/python3 test` names another Python.

VENV := .venv
CANDIDATES := $(or $(PYTHON),python3.11 python3 python3.12 python3.13)
PIP_INSTALL := $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo test
.DELETE_ON_ERROR:
.NOTPARALLEL:
# .venv/bin/python is a link to an old file; its own time says when the environment was made.
MAKEFLAGS += --check-symlink-times

demo: $(VENV)/.installed-plot
	$(VENV)/bin/python examples/disc.py --out out/disc

# Eight workers at most: each one starts an XLA client of its own.
test: $(VENV)/.installed-dev
	$(VENV)/bin/ruff check
	$(VENV)/bin/pyright
	$(VENV)/bin/python -m pytest --numprocesses=auto --maxprocesses=8

# Editable, so that a change in src/ needs no new installation.
$(VENV)/.installed-%: pyproject.toml $(VENV)/bin/python
	$(PIP_INSTALL) --editable '.[$*]'
	@touch $@

# The first candidate that runs (a pyenv shim may not), is new enough, and can make a virtual environment (Debian splits
# ensurepip off). --clear removes what an interrupted call left.
$(VENV)/bin/python:
	@for python in $(CANDIDATES); do \
	    if $$python -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	        echo "creating $(VENV) with $$($$python --version)"; \
	        exec $$python -m venv --clear $(VENV); \
	    fi; \
	done; \
	echo "antegrad needs Python 3.11 or newer with its venv module; tried: $(CANDIDATES)" >&2; \
	echo "Install one (on Debian: apt install python3 python3-venv), or name it: make PYTHON=/path/to/python3 test" >&2; \
	exit 1
