# `make demo` shows what Snugfit does; `make test` runs the whole gate. Both set up .venv first; a second run installs nothing.
#
# PYTHON       the interpreter that .venv is made from, 3.11 or newer
# TORCH_INDEX  another package index for torch, for instance https://download.pytorch.org/whl/cpu

PYTHON ?= python3
TORCH_INDEX ?=
export PYTHON TORCH_INDEX
# dozens of processes import the same thousands of files: compiled once, and kept, that is minutes less
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test test-all test-release format docs

help:
	@echo "make demo          fine-tune a real text classifier, track it, load it back, predict"
	@echo "make test          the gate: formatting, lint, types, layers, docs, every law of every technique, quick tests"
	@echo "make test-all      the gate, then the slow tests and the mutations"
	@echo "make test-release  the full products of which test-all runs a sample: half an hour on two idle cores, before a release"
	@echo "make format        format and mend what can be mended by itself"
	@echo "make docs          build the documentation into docs/_build/html"

demo:
	@scripts/environment demo && .venv/bin/python examples/stdlib_docs/demo.py

test:
	@started=$$(date +%s) && scripts/environment dev && .venv/bin/python scripts/check --started $$started

test-all: test
	@.venv/bin/python scripts/check --beyond

test-release:
	@scripts/environment dev && .venv/bin/python scripts/check --release

format:
	@scripts/environment dev && .venv/bin/ruff check --fix-only --quiet . && .venv/bin/ruff format .

docs:
	@scripts/environment dev && .venv/bin/python scripts/check docs
