# `make demo` shows what Snugfit does; `make test` runs the whole gate. Both set up .venv first; a second run installs nothing.
#
# PYTHON       the interpreter that .venv is made from, 3.11 or newer
# TORCH_INDEX  another package index for torch, for instance https://download.pytorch.org/whl/cpu

PYTHON ?= python3
TORCH_INDEX ?=
export PYTHON TORCH_INDEX

.PHONY: help demo test test-all format docs

help:
	@echo "make demo      fine-tune a real text classifier, track it, load it back, predict"
	@echo "make test      the gate: formatting, lint, types, layers, docs, tests (a fifth of the slow ones)"
	@echo "make test-all  the gate with every slow test"
	@echo "make format    format and mend what can be mended by itself"
	@echo "make docs      build the documentation into docs/_build/html"

demo:
	@scripts/environment demo && .venv/bin/python examples/stdlib_docs/demo.py

test:
	@started=$$(date +%s) && scripts/environment dev && .venv/bin/python scripts/check --started $$started

test-all:
	@started=$$(date +%s) && scripts/environment dev && .venv/bin/python scripts/check --started $$started --all

format:
	@scripts/environment dev && .venv/bin/ruff check --fix-only --quiet . && .venv/bin/ruff format .

docs:
	@scripts/environment dev && .venv/bin/python scripts/check docs
