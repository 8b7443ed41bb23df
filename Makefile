# Each target sets up what it needs in .venv and works alone; the second call starts at once.
# Needs: Python >= 3.11 with venv and headers, a C++ compiler, make, git.

, := ,
PYTHON ?= python3
ARGS   ?=

VENV := .venv
PY   := $(VENV)/bin/python
ASAN_VENV := build/asan-venv
KERNELS := build/.kernels-ready
# The build tools lie in .venv, not in a throw-away environment, so that they are pinned too and
# recompiling is incremental.
PIP  := $(PY) -m pip install --progress-bar off --disable-pip-version-check --no-build-isolation -c constraints.txt

# setuptools: gym, in the dev extra, comes as source only; and MiniHack imports pkg_resources, which left it in 82.
BUILD_TOOLS := scikit-build-core nanobind numpy cmake ninja setuptools
SETUP_FILES := pyproject.toml constraints.txt CMakeLists.txt $(shell find core -name tests -prune -o -type f -print)

.PHONY: help run test test-slow test-twins soak test-asan test-tsan lint bench bench-full clean redo
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# Two targets must not run pip in the same .venv at once.
.NOTPARALLEL:
# Tests start hundreds of processes, and each would compile Shoal's modules again.
unexport PYTHONDONTWRITEBYTECODE

help: ## Show this list
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 12

run: $(VENV)/.ready-cli ## Run the demo: vector envs side by side, then PPO solves CartPole (ARGS are passed on)
	@$(PY) -m shoal demo $(ARGS)

# On all cores. Tests that would disturb each other have one `xdist_group` and so one process.
PYTEST := -m pytest -n logical --maxprocesses 8 --dist loadgroup

test: $(KERNELS) ## Run the tests (ARGS="-k name -x" is passed on to pytest)
	@$(PY) $(PYTEST) -m "not slow" $(ARGS)

test-slow: $(KERNELS) ## Run what `make test` leaves out: long learning, soaking
	@$(PY) $(PYTEST) -m slow $(ARGS)

test-twins: $(VENV)/.ready-dev ## Run the tests marked `twins` on the core's twins in Python
	@SHOAL_CORE=reference $(PY) $(PYTEST) -m "twins and not slow" $(ARGS)

soak: $(VENV)/.ready-dev ## Run random resets, sends, kills and restarts for 10 minutes
	@SHOAL_SOAK_SECONDS=600 $(PY) -m pytest tests/vector/test_soak.py $(ARGS)

bench: $(VENV)/.ready-cli ## Measure Shoal beside Gymnasium and the limit (about 2 minutes; ARGS are passed on)
	@$(PY) benchmarks/run.py quick $(ARGS)

bench-full: $(VENV)/.ready-cli ## Measure all envs and all peers (about 20 minutes; installs the peers)
	@$(PY) benchmarks/run.py full $(ARGS)

# Python must load the sanitizers first, and leave each object to malloc, so that they see it. What Python
# itself never frees is no leak of ours: tests/core/test_memory.py looks for those.
test-asan: $(ASAN_VENV)/.ready $(KERNELS) ## Run the tests marked `core` with AddressSanitizer and UBSan in the core
	@export LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libubsan.so)" \
	  ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 PYTHONMALLOC=malloc SHOAL_CORE=native; \
	$(ASAN_VENV)/bin/python -c 'from shoal._core import _native; _native.__sanitized__' && \
	$(ASAN_VENV)/bin/python $(PYTEST) -m "core and not slow and not again" $(ARGS)

# ThreadSanitizer cannot start where the kernel scatters addresses wider than it expects, so that is switched off
# if the machine allows it.
test-tsan: build/handshake_test build/thread_pool_test ## Run the core's handshake and pool on threads, with ThreadSanitizer
	@fixed="setarch $$(uname -m) -R"; $$fixed true 2>/dev/null || fixed=; export TSAN_OPTIONS=halt_on_error=1; \
	$$fixed ./build/handshake_test && $$fixed ./build/thread_pool_test

lint: $(VENV)/.ready-dev ## Check style, format and types
	@$(PY) -m ruff check
	@$(PY) -m ruff format --check
	@$(PY) -m mypy

clean: ## Remove .venv, builds and caches
	rm -rf $(VENV) benchmarks/.venvs build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp is written when all before it has succeeded. A pip that was killed can leave a package
# half installed that looks whole: .installing then still lies there, and .venv is made anew.
# $(1) is the line that says what is being done, $(2) what to install. pip itself is heard only if it
# fails: its warnings are about the machine it runs on.
define install
@touch $(VENV)/.installing
@$(PY) tools/install.py "$(1)" $(PIP) $(2); status=$$?; \
  [ $$status -ge 128 ] || rm -f $(VENV)/.installing; exit $$status
endef

$(VENV)/.created: $(if $(wildcard $(VENV)/.installing),redo)
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit( \
	  "Shoal needs Python 3.11 or later; $(PYTHON) is %d.%d. Try: make PYTHON=python3.11 ..." \
	  % sys.version_info[:2])'
	@echo "Creating $(VENV)"
	@$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(VENV)/.ready-cli: $(VENV)/.created $(SETUP_FILES)
	@echo "Setting up $(VENV) for the demo (first time: about 1 minute)"
	$(call install,1/2 build tools,$(BUILD_TOOLS))
	$(call install,2/2 Shoal and its packages,-e ".[cli$(,)native$(,)learn]")
	@touch $@

# nle pins an old Gymnasium, though it runs on the newest: so without what it asks for.
$(VENV)/.ready-dev: $(VENV)/.created $(SETUP_FILES)
	@echo "Setting up $(VENV) for development (first time: about 2 minutes)"
	$(call install,1/3 build tools,$(BUILD_TOOLS))
	$(call install,2/3 Shoal and its packages,-e ".[dev$(,)cli$(,)atari$(,)box2d$(,)hockey$(,)league$(,)learn$(,)minigrid$(,)mujoco$(,)native$(,)pettingzoo$(,)sb3$(,)video]")
	$(call install,3/3 NetHack,--no-deps nle minihack)
	@touch $(VENV)/.ready-cli $@

# Before the tests, which would wait for each other, and with the sanitizers take minutes.
$(KERNELS): $(VENV)/.ready-dev tests/kernels.py src/shoal/registry.py \
  $(wildcard src/shoal/native/*.py src/shoal/envs/*.py src/shoal/hockey/*.py src/shoal/testing/native_envs.py)
	@$(PY) -m tests.kernels
	@mkdir -p $(@D) && touch $@

# Only the core is built anew; everything else is found in .venv.
$(ASAN_VENV)/.ready: $(VENV)/.ready-dev
	@echo "Building the core with sanitizers"
	@$(PYTHON) -m venv --clear --without-pip $(ASAN_VENV)
	@$(PY) -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
	  > $$($(ASAN_VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/base.pth
	@PATH="$(CURDIR)/$(VENV)/bin:$$PATH" SKBUILD_BUILD_DIR=build/asan $(ASAN_VENV)/bin/python -m pip install -qq --disable-pip-version-check \
	  --no-build-isolation --no-deps --prefix $(ASAN_VENV) --ignore-installed -C cmake.define.SHOAL_SANITIZE=ON -e .
	@touch $@

# Straight from the compiler: it has nothing to do with Python.
build/%_test: core/tests/%_test.cpp $(addprefix core/include/shoal/,handshake/handshake.hpp handshake/core_placement.hpp threads/crash.hpp \
  threads/masked_signals.hpp threads/thread_pool.hpp)
	@mkdir -p $(@D)
	@$(CXX) -std=c++17 -O1 -g -fsanitize=thread -Wall -Wextra -Wpedantic -Werror -pthread -I core/include $< -o $@
