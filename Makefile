# Every target sets up what it needs on a machine with Python 3.11 and make.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# The tests start a thousand processes: none of them compiles what another has compiled.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: pgbouncer postgresql chromium screenshots demo test test-busy check bench compare explain format clean \
	prove-horizon prove-exactness prove-bucket prove-schedules prove-dashboard

$(VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

demo: $(VENV)/.ready
	$(BIN)/headgate demo
	@echo "Next: the ten lines of README.md, docs/quickstart.md, or make test."

# The tests behind PgBouncer fail, and say so, where it is missing.
pgbouncer:
	@PATH="$$PATH:/usr/sbin:/usr/local/sbin"; \
	if ! command -v pgbouncer >/dev/null && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get update -q && DEBIAN_FRONTEND=noninteractive \
			apt-get install -y -q --no-install-recommends pgbouncer; \
	fi >/dev/null || true; \
	command -v pgbouncer >/dev/null || echo "PgBouncer is missing: install it to run all tests"

# A server with auto_explain and pg_stat_statements, which the bundled one has not: where it is
# missing its tests are skipped, and say so; with CI set they fail.
postgresql:
	@found() { ls /usr/lib/postgresql/*/lib/auto_explain.so >/dev/null 2>&1; }; \
	if ! found && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get update -q && DEBIAN_FRONTEND=noninteractive \
			apt-get install -y -q --no-install-recommends postgresql; \
	fi >/dev/null || true; \
	found || echo "PostgreSQL with auto_explain is missing: install it to run all tests"

# The tests in a browser are skipped, and say so, where it is missing; with CI set they fail.
chromium:
	@if ! command -v chromium >/dev/null && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get update -q && DEBIAN_FRONTEND=noninteractive \
			apt-get install -y -q --no-install-recommends chromium; \
	fi >/dev/null || true; \
	command -v chromium >/dev/null || echo "Chromium is missing: install it to run all tests"

screenshots: $(VENV)/.ready chromium
	$(BIN)/python -m tests.web.screenshots screenshots

# Four at a time: most tests wait for processes more than they compute.
TESTERS ?= 4
PYTEST = $(BIN)/pytest -n $(TESTERS) --dist worksteal $(ARGS)
NEXT = { echo "Next: repeat one test with make test ARGS='path::test --count 20'."; exit 1; }
test: $(VENV)/.ready pgbouncer postgresql chromium
	@$(PYTEST) || $(NEXT)
	@echo "Next: make check before a commit, make compare BASE=<commit> after a change of the engine."

# The tests on a busy machine: [ARGS='path::test --count 50'].
test-busy: $(VENV)/.ready pgbouncer postgresql chromium
	@$(BIN)/python -m tests.busy 4 $(PYTEST) --timeout 900 || $(NEXT)

check: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright

STORE ?= sqlite
bench: $(VENV)/.ready $(if $(filter postgres,$(STORE)),postgresql)
	$(BIN)/python -m bench --store $(STORE) $(SCENARIO)

# The speed of this tree beside that of a commit: [SCENARIO=drain] [STORE=sqlite].
compare: $(VENV)/.ready
	@test -n "$(BASE)" || { echo "Say what to compare with: make compare BASE=<commit>"; exit 2; }
	$(BIN)/python -m bench.compare $(BASE) $(if $(SCENARIO),--scenario $(SCENARIO)) \
		$(if $(filter command line,$(origin STORE)),--store $(STORE))

explain: $(VENV)/.ready
	$(BIN)/python -m bench.explain

prove-horizon: $(VENV)/.ready
	$(BIN)/python -m bench --store postgres --minutes 15 pinned-horizon

# Tests in their full form, which takes minutes for some.
PROVE := HEADGATE_PROOF=full $(BIN)/pytest -s --timeout 1800

# On another PostgreSQL: HEADGATE_TEST_PG=system make prove-exactness
prove-exactness: $(VENV)/.ready pgbouncer postgresql
	$(PROVE) tests/exactness tests/conformance tests/crash tests/postgres $(ARGS)

prove-bucket: $(VENV)/.ready
	$(PROVE) tests/bucket tests/exactness tests/crash tests/conformance -k bucket $(ARGS)

prove-schedules: $(VENV)/.ready
	$(PROVE) tests/schedules tests/scheduler tests/configuration $(ARGS)

prove-dashboard: $(VENV)/.ready chromium
	$(PROVE) tests/web $(ARGS)

format: $(VENV)/.ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache
