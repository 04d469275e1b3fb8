# One command per task. ARGS is passed to the underlying command:
#   make test ARGS="tests/unit -k order"    make soak SEEDS=1..100000
SHELL := /bin/bash
bin := .venv/bin
ARGS ?=
SEEDS ?= 1..500
JOBS ?= 3
GROUP_SEEDS ?= 1..2000

.DEFAULT_GOAL := help
.PHONY: help venv setup core wheel demo test check format bench campaigns soak soak-groups soak-moves soak-health sweep-health lock clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo '  ARGS="..." is passed to the underlying command'

venv: ## create .venv with all dependencies; does nothing if it is up to date
	@scripts/setup

setup: venv ## the same, and compile the core if there is a C compiler; does nothing if it is up to date
	@[ -n "$$HOLDFAST_PURE" ] || $(bin)/python scripts/compile

core: setup ## compile the core with mypyc, or fail with the reason; without it, everything runs interpreted
	@$(bin)/python scripts/compile --strict

wheel: core ## build dist/: a wheel with the compiled core for this platform, and a pure one
	@for kind in compiled pure; do \
	  HOLDFAST_WHEEL=$$kind $(bin)/python -m hatchling build -t wheel -d dist || exit 1; done

demo: venv ## start a five-node domain, inject faults, and check that it keeps working
	@$(bin)/holdfast demo $(ARGS)

test: setup ## run the tests in three processes (JOBS=0: in one), then those that must run alone
	@failed=0; \
	$(bin)/pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder -m "not campaign and not alone" $(ARGS) || [ $$? = 5 ] || failed=1; \
	$(bin)/pytest -m "alone and not campaign" $(ARGS) || [ $$? = 5 ] || failed=1; \
	exit $$failed # 5: ARGS selected none of these

check: venv ## check lint, format, types and import direction
	@failed=; for step in "ruff check" "ruff format --check" "mypy" "lint-imports --no-logo"; do \
	  echo "== $$step"; $(bin)/$$step || failed="$$failed $${step%% -*},"; \
	done; if [ -n "$$failed" ]; then echo "check failed:$${failed%,}"; exit 1; fi

format: venv ## format the code
	@$(bin)/ruff check --fix-only
	@$(bin)/ruff format

bench: setup ## measure this machine: links, then the simulator; one JSON object each
	@$(bin)/holdfast bench links --json $(ARGS)
	@$(bin)/holdfast bench sim --json $(ARGS)

campaigns: setup ## run the tests that take minutes each, which make test skips
	@$(bin)/pytest -n 2 --dist loadfile -m campaign --timeout 3600 $(ARGS)

soak: setup ## simulate a domain with many seeds; prints how to replay a failure
	@$(bin)/holdfast sim run --seeds $(SEEDS) --nodes 5 --seconds 30 $(ARGS)

soak-groups: setup ## run fault campaigns against replicated groups, 2000 seeds; prints what was exercised and how to replay a failure
	@$(bin)/holdfast sim groups --seeds $(GROUP_SEEDS) --jobs 2 $(ARGS)

soak-moves: setup ## add and remove replicas under faults, 20 000 runs (an hour)
	@$(bin)/python scripts/soak-moves $(ARGS)

soak-health: setup ## count false alarms on a hundred paths with loss and pauses, one hour of virtual time (a quarter of an hour)
	@$(bin)/holdfast bench health --json --seconds 0 --cost-seconds 0 --minutes 60 $(ARGS)

sweep-health: setup ## inject a thousand random faults in virtual time; checks detection, diagnosis and rerouting (an hour of one core)
	@$(bin)/holdfast sim health --seeds 1..1000 $(ARGS)

lock: venv ## regenerate requirements/*.txt (ARGS=--upgrade for newer versions)
	@scripts/lock $(ARGS)

clean: ## remove .venv and everything that tools generated
	@rm -rf .venv .venv.old.* .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis \
	  build dist src/holdfast/_compiled spark-warehouse metastore_db derby.log
	@find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
