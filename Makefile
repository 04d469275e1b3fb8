# One command for each thing. ARGS goes to the command behind it:
#   make test ARGS="tests/unit -k order"    make soak SEEDS=1..100000
SHELL := /bin/bash
bin := .venv/bin
ARGS ?=
SEEDS ?= 1..500
JOBS ?= 2
GROUP_SEEDS ?= 1..2000

.DEFAULT_GOAL := help
.PHONY: help venv setup core wheel demo test check format bench campaigns soak soak-groups soak-moves soak-health sweep-health lock clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo '  ARGS="..." is handed to the command behind a target'

venv: ## make .venv with everything in it; a second run takes no time
	@scripts/setup

setup: venv ## the same, and compile the core where there is gcc; a second run takes no time
	@[ -n "$$HOLDFAST_PURE" ] || $(bin)/python scripts/compile

core: setup ## compile the core with mypyc, or say why that is not possible; without it everything runs interpreted
	@$(bin)/python scripts/compile --strict

wheel: core ## build dist/: a wheel with the compiled core for this platform, and a pure one
	@for kind in compiled pure; do \
	  HOLDFAST_WHEEL=$$kind $(bin)/python -m hatchling build -t wheel -d dist || exit 1; done

demo: venv ## start a domain, break its network, watch it go on
	@$(bin)/holdfast demo $(ARGS)

test: setup ## run the tests, file by file on two cores (JOBS=0: in one process), then those that need the machine alone
	@$(bin)/pytest -n $(JOBS) --dist loadfile -m "not campaign and not alone" $(ARGS) || [ $$? = 5 ]
	@$(bin)/pytest -m "alone and not campaign" $(ARGS) || [ $$? = 5 ] # 5: ARGS chose none of these

check: venv ## lint, format, types, direction of imports
	@failed=; for step in "ruff check" "ruff format --check" "mypy" "lint-imports --no-logo"; do \
	  echo "== $$step"; $(bin)/$$step || failed="$$failed $${step%% -*},"; \
	done; if [ -n "$$failed" ]; then echo "check failed:$${failed%,}"; exit 1; fi

format: venv ## put the code into its usual form
	@$(bin)/ruff check --fix-only
	@$(bin)/ruff format

bench: setup ## measure this machine: links, then the simulator; one JSON object each
	@$(bin)/holdfast bench links --json $(ARGS)
	@$(bin)/holdfast bench sim --json $(ARGS)

campaigns: setup ## tests that take minutes each, which make test leaves out
	@$(bin)/pytest -n $(JOBS) --dist loadfile -m campaign --timeout 3600 $(ARGS)

soak: setup ## a long campaign of simulated runs with new seeds; prints how to replay a failure
	@$(bin)/holdfast sim run --seeds $(SEEDS) --nodes 5 --seconds 30 $(ARGS)

soak-groups: setup ## break replicated groups in 2000 ways; prints what was exercised and how to replay a failure
	@$(bin)/holdfast sim groups --seeds $(GROUP_SEEDS) --jobs 2 $(ARGS)

soak-moves: setup ## replicas that come and go under every fault, 20 000 runs (an hour)
	@$(bin)/python scripts/soak-moves $(ARGS)

soak-health: setup ## an hour of a hundred paths with loss and pauses, in virtual time: false alarms (a quarter of an hour)
	@$(bin)/holdfast bench health --json --seconds 0 --cost-seconds 0 --minutes 60 $(ARGS)

sweep-health: setup ## a thousand random faults in virtual time: found, named, routed around? (an hour of one core)
	@$(bin)/holdfast sim health --seeds 1..1000 $(ARGS)

lock: venv ## write requirements/*.txt again (ARGS=--upgrade for newer versions)
	@scripts/lock $(ARGS)

clean: ## remove .venv and everything that tools made
	@rm -rf .venv .venv.old.* .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis \
	  build dist src/holdfast/_compiled spark-warehouse metastore_db derby.log
	@find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
