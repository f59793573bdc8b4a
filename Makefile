# SPDX-License-Identifier: Apache-2.0
# A thin door: every target calls one small script below scripts/ (or deploy/local/), which says what it does itself.
# `make` alone lists the targets.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.NOTPARALLEL:

PRESET ?= release
SEEDS ?= 20000
FUZZ_SECONDS ?= 60

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  %-18s %s\n", $$1, $$2}' Makefile

.PHONY: build
build: ## compile everything into build/$(PRESET)/bin (PRESET=release|debug|asan|tsan|coverage|fuzz)
	@scripts/build "$(PRESET)"

.PHONY: demo
demo: ## install what is missing, build, start the one-machine stack, run the tour, leave the stack up
	@scripts/demo

.PHONY: down
down: ## stop everything this clone started, and nothing else (data stays; `deploy/local/stack down --purge` removes it)
	@scripts/down

.PHONY: test
test: ## install what is missing, build, run all tests
	@scripts/test

.PHONY: check
check: ## the quick suite: structure, unit tests, 200 simulator seeds, skctl (under two minutes when built)
	@scripts/test --quick

.PHONY: sim
sim: ## long simulator run: make sim SEEDS=20000 [FIRST=1]
	@scripts/sim "$(SEEDS)" $(FIRST)

.PHONY: bench
bench: ## benchmarks, each with its peer or limit from the same run
	@scripts/bench

.PHONY: fuzz
fuzz: ## every libFuzzer target for FUZZ_SECONDS (60) on its seed corpus
	@scripts/fuzz "$(FUZZ_SECONDS)"

.PHONY: format
format: ## rewrite our C files with clang-format
	@scripts/format

.PHONY: lint
lint: ## static checks: clang-format, clang-tidy, shellcheck where installed, structure
	@scripts/lint

.PHONY: install-deps
install-deps: ## install what build, stack and tests need and is missing
	@scripts/install-deps

.PHONY: tools-fast-mongo
tools-fast-mongo: ## build the fast Mongo-wire server into the tools cache (10-15 minutes; benchmarks use it when there)
	@scripts/tools-fast-mongo

.PHONY: docs
docs: ## rewrite the pages that are made from the programs (configuration, manual page, state machine)
	@scripts/build debug && scripts/docs
