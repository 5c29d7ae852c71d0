# `make test` and `make demo` set up a virtual environment by themselves; a second call finds it ready.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: setup quick test test-slow lint types audit constraints demo docs docs-serve clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Setting up $(VENV): some minutes"
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev]"
	touch $@

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(STAMP)
	$(BIN)/pyright

audit: $(STAMP)
	$(BIN)/python tools/audit.py

constraints: $(STAMP)
	$(BIN)/python tools/pin.py

quick: $(STAMP)
	$(BIN)/pytest -n 2 -m "unit and not slow"

test: lint types audit
	$(BIN)/pytest -n 2 -m "not slow" --durations 15

test-slow: $(STAMP)
	$(BIN)/pytest -n 2 -m slow

demo: $(STAMP)
	$(BIN)/hyla demo

# Pages show pictures of results, which come along.
docs: $(STAMP)
	$(BIN)/zensical build --clean --strict
	@tar -cf - results/lab/*/figures | tar -xf - -C site
	@echo "Open site/index.html, or run 'make docs-serve': the search works only from a server"

docs-serve: docs
	@echo "Ctrl-C stops it"
	$(BIN)/python -m http.server --bind 127.0.0.1 --directory site

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis .cache site
