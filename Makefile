# `make demo` sets up a virtual environment with what it needs, and `make test` adds the tools of
# development. A second call finds it ready, and one after an interruption goes on.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO_STAMP := $(VENV)/.installed-demo
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: setup quick test test-slow test-gpu test-tools kernel-package lint types audit constraints demo docs docs-serve clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	@echo "Setting up $(VENV) for development: some minutes"
	$(INSTALL) -e ".[dev]"
	touch $@ $(DEMO_STAMP)

$(DEMO_STAMP): pyproject.toml constraints.txt
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	@echo "Setting up $(VENV) for the demo, of which PyTorch is the most: some minutes (on Linux, to"
	@echo "spare gigabytes of CUDA, install its CPU build there first: see CONTRIBUTING.md)"
	$(INSTALL) -e ".[figures]"
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

# Says at the end what was skipped, and for want of what.
test: lint types audit
	$(BIN)/pytest -n 2 -m "not slow" --durations 15 -rs

test-slow: $(STAMP)
	$(BIN)/pytest -n 2 -m slow

# Installs nothing: a GPU machine often has a torch of its own.
test-gpu:
	PYTHONPATH=src $(PYTHON) tools/gpu_tests.py

# Other people's tools, in an environment of their own: they bring half a hundred packages, and the
# Hugging Face kernels change what transformers does.
TOOLS := $(VENV)-tools
$(TOOLS)/.installed: pyproject.toml constraints.txt tools/constraints-tools.txt
	test -x $(TOOLS)/bin/python || $(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/python -m pip install --quiet -c constraints.txt -c tools/constraints-tools.txt \
		-e ".[transformers,inspection,evaluation,reasoning-gym,kernels]" pytest
	touch $@

test-tools: $(TOOLS)/.installed
	$(TOOLS)/bin/python -m pytest $(addprefix tests/integrations/test_,inspection.py lm_eval.py \
		reasoning_gym.py hub_kernels.py)

kernel-package:
	$(PYTHON) tools/kernel_package.py dist/hyla-attention

demo: $(DEMO_STAMP)
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
	rm -rf $(VENV) $(VENV)-tools .pytest_cache .ruff_cache .hypothesis .cache site
