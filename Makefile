# Every target makes its own .venv: a machine needs Python 3.10 or later, and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Tests mostly wait, so four run at a time, even on two cores. PYTEST_ARGS= runs one at a time.
PYTEST_ARGS ?= --numprocesses 4 --dist worksteal
# The tests of one file share their project's worker.
ADOPTION_ARGS ?= --numprocesses 4 --dist loadfile
# The tests of one file share a shop, and its state.
BROWSER_ARGS ?= --numprocesses 2 --dist loadfile

COMPAT_TESTS := $(addprefix tests/,unit/test_fetch_amount.py unit/test_limits.py unit/test_deadline.py unit/test_loop.py \
	integration/test_verbs.py integration/test_ledger.py integration/test_ledger_cases.py integration/test_ledger_model.py \
	integration/test_fetch_scripts.py integration/test_fetch_idle.py acceptance/test_fetch.py acceptance/test_prefetch.py \
	acceptance/test_gate.py acceptance/test_outcomes.py)
# The lowest versions that pyproject.toml allows, as "celery==5.5.*".
OLDEST := $(shell sed -nE 's/^ *"(celery|kombu|redis)>=([0-9.]+).*/\1==\2.*/p' pyproject.toml)

.DEFAULT_GOAL := help
.PHONY: help test test-fast promises faults compat adoption browser screenshots mutants lint soak endurance demo bench docs clean

help:  ## Show this
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read -r target text; \
		do printf '%-16s %s\n' "$$target" "$$text"; done

test: $(VENV)/.with-test  ## Run all tests except those of the next targets
	$(BIN)/python -m pytest -m "not promises" $(PYTEST_ARGS)

promises: $(VENV)/.with-test  ## Run the tests that take the real time of the default settings
	$(BIN)/python -m pytest tests/acceptance tests/faults -m promises $(PYTEST_ARGS)

test-fast: $(VENV)/.with-test  ## Run the tests that are not slow
	$(BIN)/python -m pytest -m "not slow and not promises" $(PYTEST_ARGS)

faults: $(VENV)/.with-test  ## Run the tests of kills, outages and restarts, and of every kind of broker
	$(BIN)/python -m pytest tests/faults -m "not promises" $(PYTEST_ARGS)

compat: .venv-oldest/.made .venv-newest/.made  ## Test it on the oldest and newest Celery, kombu, redis-py and Redis that are supported
	ORCHESTRATION_TEST_REDIS=bundled .venv-oldest/bin/python -m pytest $(COMPAT_TESTS) -m "not slow and not promises" $(PYTEST_ARGS)
	.venv-newest/bin/python -m pytest $(COMPAT_TESTS) -m "not slow and not promises" $(PYTEST_ARGS)

adoption: $(VENV)/.with-test-adoption  ## Test it in whole projects: the examples, and others beside Django, Flower, Sentry ...
	$(BIN)/python -m pytest tests/adoption $(ADOPTION_ARGS)

browser: $(VENV)/.with-test-browser  ## Test the dashboard in real Chromium (Debian: apt install chromium)
	$(BIN)/python -m pytest tests/browser $(BROWSER_ARGS)

screenshots: $(VENV)/.with-test-browser  ## Take the pictures of the dashboard that the README shows
	PYTHONPATH=tests $(BIN)/python -m browser.screenshots docs/images

mutants: $(VENV)/.with-test  ## Check that the tests notice small mistakes; MUTANTS_ARGS="--only NAME" for one
	PYTHONPATH=tests $(BIN)/python -m mutants $(MUTANTS_ARGS)

lint: $(VENV)/.with-test-lint  ## Check style, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

soak: $(VENV)/.with-test  ## Break things at random under load and check; SEED=7 SECONDS=120 TOPOLOGY=together|apart|rabbitmq
	PYTHONPATH=tests $(BIN)/python -m soak --seconds $(or $(SECONDS),60) $(if $(SEED),--seed $(SEED)) \
		$(if $(TOPOLOGY),--topology $(TOPOLOGY)) $(SOAK_ARGS)

endurance: $(VENV)/.with-examples  ## Kill schedulers at random and account for every fire; MINUTES=10 PACE=20 SEED=7
	$(BIN)/python -m examples.endurance --minutes $(or $(MINUTES),10) --pace $(or $(PACE),20) $(if $(SEED),--seed $(SEED))

demo: $(VENV)/.with-examples  ## Show it at work: up on an example, while things are broken on purpose
	$(BIN)/python -m examples.demo

bench: $(VENV)/.with-bench-test-browser  ## Measure what it costs; BENCH_ARGS="--only e --quick" for a part
	$(BIN)/python -m bench $(BENCH_ARGS)

docs: $(VENV)/.with-test  ## Write the pages that are made from the code: docs/json.md
	$(BIN)/python -m celery_orchestration.operate.schema > docs/json.md

clean:  ## Remove the environment and everything made by these targets
	rm -rf $(VENV) .venv-oldest .venv-newest build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .demo .bench .soak
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	find . -name '*.egg-info' -type d -prune -exec rm -rf {} +

# .with-<extras> says that the extras, joined by dashes, are installed; a changed pyproject.toml undoes that.
$(VENV)/.with-%: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$(subst -,$(comma),$*)]'
	@touch $@

.venv-oldest/.made: VERSIONS = $(foreach one,$(OLDEST),'$(one)')
.venv-oldest/.made .venv-newest/.made: pyproject.toml
	$(PYTHON) -m venv --clear $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[test]' $(VERSIONS)
	@touch $@

comma := ,
.PRECIOUS: $(VENV)/.with-%

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
		|| { echo "$(PYTHON) is older than 3.10: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null \
		|| { echo "$(PYTHON) has no venv: on Debian, apt install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV) || { rm -rf $(VENV); exit 1; }
