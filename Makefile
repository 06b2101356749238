# Everything is installed into .venv on first use, in the versions of constraints.txt; only python3 and make are
# assumed. VENV=folder names another one.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
JOBS ?= 2
SEEDS ?= 50
PYTHONS ?= 3.12 3.13 3.14
PYTEST := $(BIN)/python -m pytest -q
# pip, with a line that shows its progress.
INSTALL := $(PYTHON) tools/install.py $(BIN)/python
# Tests start hundreds of interpreters, and each would compile the library anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test test-all test-changed check lint docs free-threaded dist wheel nightly soak formats oldest \
    notebooks trl extras pythons lock sbom audit bench bench-quick clean
help:
	@echo "make demo           mix, pack, kill, resume and compare, on data this machine already has"
	@echo "make test           the quick tests, docstrings, docs code blocks and examples: about 6 minutes on 2 cores"
	@echo "make test-all       every test, also those marked slow: processes, kills, clusters, trainers"
	@echo "make test-changed   the quick tests of what differs from BASE=main, in about 30 seconds"
	@echo "make check          ruff, pyright, the words of names and docs (make lint), the rules of the source tree"
	@echo "make docs           the documentation; warnings are errors"
	@echo "make free-threaded  the tests of threads on a Python without the interpreter lock, if there is one"
	@echo "make nightly        soak, formats, notebooks, trl, extras, oldest, pythons, bench: what the gate, .ci/run, has no time for"
	@echo "make soak           the property tests with SEEDS=50 fresh seeds, long runs, fuzzers, a million documents"
	@echo "make formats        every format, written by its own tool, which is installed for that"
	@echo "make notebooks      the notebooks of the docs, executed in Jupyter: no cell raises, and texts are as stored"
	@echo "make trl            the trainers of TRL, which is installed for that"
	@echo "make oldest         the core with the oldest versions that it allows, without pandas"
	@echo "make pythons        the quick tests on every other Python that is installed: PYTHONS=\"$(PYTHONS)\""
	@echo "make dist           wheel and sdist, built twice and compared"
	@echo "make wheel          README, quickstart and demo with that wheel alone: WHEEL_PYTHONS=\"$(WHEEL_PYTHONS)\""
	@echo "make extras         each extra alone in a new environment: EXTRAS=\"zstd images\" for some"
	@echo "make lock           constraints.txt from pyproject.toml; LOCK=--upgrade takes the newest versions"
	@echo "make sbom audit     a bill of materials (CycloneDX), and known vulnerabilities, which asks a service"
	@echo "make bench          Penstock beside its peers: writes bench/RESULTS.md; bench-quick: ratios in under a minute"

# A stamp is newer than what it was made from. Modules are compiled at their first use, which most never see.
$(VENV)/.demo: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	@$(INSTALL) --editable '.[demo]'
	@touch $@

# torch first and by itself: this version is found as a CPU build where there is one, a range would bring the newest.
$(VENV)/.dev: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	@$(INSTALL) torch==2.13.0
	@$(INSTALL) --editable '.[dev]'
	@touch $@ $(VENV)/.demo

# The last three ask for older versions of what the others need, and for a torchvision that cannot load beside a CPU
# build of torch. What they import is in the extra; they come without their lists.
$(VENV)/.bench: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	@$(INSTALL) torch==2.13.0
	@$(INSTALL) --editable '.[bench]'
	@$(INSTALL) --no-lock --no-deps litdata==0.2.76 mosaicml-streaming==0.13.0 trl==1.16.0 boto3 s3transfer
	@touch $@

# What builds and checks the distribution, by itself: a small environment that needs none of the others.
.venv-publish/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-publish
	@$(PYTHON) tools/install.py .venv-publish/bin/python build hatchling cyclonedx-bom pip-audit
	@touch $@

demo: $(VENV)/.demo
	$(BIN)/penstock demo

test: $(VENV)/.dev
	$(PYTEST) -n $(JOBS) --dist worksteal -m "not slow"

test-all: $(VENV)/.dev
	$(PYTEST) -n $(JOBS) --dist worksteal

# The tests beside what was changed since BASE, also what is not committed.
BASE ?= main
test-changed: $(VENV)/.dev
	@$(BIN)/python tools/changed_tests.py --base $(BASE) --jobs $(JOBS)

check: lint
	$(PYTEST) -m "not slow" tests/test_house.py

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/python tools/words.py --strict
	$(BIN)/python tools/engine_size.py --check

docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# The threads executor on an interpreter without the lock: FREE=path names one, else it is looked for.
free-threaded:
	@$(PYTHON) tools/free_threaded.py $(FREE)

# ---------------------------------------------------------------- the distribution

dist: .venv-publish/.ready
	.venv-publish/bin/python tools/distribution.py build

WHEEL_PYTHONS ?= 3.11 3.12 3.13
wheel: dist
	.venv-publish/bin/python tools/distribution.py wheel $(WHEEL_PYTHONS)

EXTRAS ?=
extras: dist
	.venv-publish/bin/python tools/distribution.py extras $(EXTRAS)

# The versions that uv resolves from the indexes of this machine; the file names no index.
LOCK ?=
lock: .venv-publish/.ready
	@$(PYTHON) tools/install.py .venv-publish/bin/python --no-lock uv
	.venv-publish/bin/python tools/lock.py $(LOCK)

# What the wheel with its command line installs, as CycloneDX.
sbom: dist
	.venv-publish/bin/python tools/distribution.py sbom

# Known vulnerabilities of the locked versions. The database is a service of the network: without it, this fails.
audit: .venv-publish/.ready
	.venv-publish/bin/pip-audit --strict --no-deps --disable-pip --requirement constraints.txt

# ---------------------------------------------------------------- what runs once a night

nightly: soak formats notebooks trl wheel extras oldest pythons bench

# SEEDS rounds of the property tests; each draws a fresh seed, and pytest prints it.
soak: $(VENV)/.dev
	DOCUMENTS=1000000 $(PYTEST) tests/engine/runtime/executors/test_ray_actors.py -k shards
	SOAK=1 $(PYTEST) tests/engine/runtime/executors/test_ray_actors.py tests/engine/runtime/executors/test_processes.py -k "without or node"
	SOAK=1 $(PYTEST) -s tests/sources/test_first_use.py tests/sources/test_damage.py tests/sources/test_fuzz.py
	SOAK=1 $(PYTEST) tests/mixture_files/test_curriculum.py tests/integrations/test_trainers.py tests/test_found.py \
	    tests/cli/demo/test_story.py
	SOAK=1 $(PYTEST) -n $(JOBS) tests/cli/test_manners.py tests/compat/test_easydata_mixing.py tests/sources/test_formats.py \
	    tests/sources/test_derived_kinds.py tests/sources/test_hostile.py
	SOAK=1 $(PYTEST) -n $(JOBS) tests/test_removal.py tests/engine/changes/test_history.py tests/mixture_files/test_tokenize.py \
	    tests/engine/changes/test_adopted_pasts.py
	SOAK=1 $(PYTEST) -n $(JOBS) tests/engine/mixing/test_mix.py tests/engine/changes/test_adopt.py tests/media/test_images.py \
	    tests/engine/runtime/test_resume.py tests/text/chat/test_masks_of_families.py \
	    tests/text/chat/test_masks_of_conversations.py tests/compat/test_grain_order.py
	SOAK=1 $(PYTEST) -n $(JOBS) tests/engine/runtime/executors/test_kills.py tests/engine/runtime/executors/test_memory.py
	SOAK=1 $(PYTEST) tests/test_stages.py tests/test_killed_stages.py tests/integrations/test_evaluation.py
	SOAK=1 $(PYTEST) -n $(JOBS) tests/engine/runtime/test_forged.py tests/engine/runtime/test_interrupt.py \
	    tests/engine/runtime/test_signals.py tests/engine/steps/test_function_step.py tests/engine/steps/test_group_stream.py \
	    tests/engine/steps/test_mix_stream.py tests/engine/streams/test_lanes.py tests/leases/test_lanes.py \
	    tests/test_outside.py tests/test_saves.py tests/cli/test_preview.py tests/compat/test_grain.py \
	    tests/mixture_files/test_step_sizes.py tests/sources/test_tokens.py
	SOAK=1 $(PYTEST) tests/integrations/test_loss_counts.py tests/integrations/test_orbax.py \
	    tests/integrations/test_shared_reader.py tests/integrations/test_steering.py tests/integrations/test_torch.py
	SOAK=1 $(PYTEST) tests/test_bench.py -k every_row
	SOAK=1 $(PYTEST) tests/test_operations.py
	for round in $$(seq $(SEEDS)); do \
	    seed=$$($(PYTHON) -c "import secrets; print(secrets.randbits(32))"); \
	    echo "round $$round of $(SEEDS): --hypothesis-profile=soak --hypothesis-seed=$$seed"; \
	    $(PYTEST) -n $(JOBS) -m hypothesis --hypothesis-profile=soak --hypothesis-seed=$$seed || exit 1; \
	done

# The tools that the tests of formats do without; the last two come without their lists, as above.
formats: $(VENV)/.dev
	@$(INSTALL) --editable '.[lance,vortex]' \
	    brotli catalogue python-snappy xxhash lightning-utilities tifffile tfrecord crc32c zstd
	@$(INSTALL) --no-lock --no-deps \
	    litdata==0.2.76 mosaicml-streaming==0.13.0 boto3 s3transfer
	$(PYTEST) tests/sources/test_formats.py tests/sources/test_lance.py tests/sources/test_vortex.py \
	    tests/sources/test_litdata.py tests/sources/test_mds.py

# The kernel is of the environment, so it finds what the notebooks import. NOTEBOOKS="--write docs/notebooks/*.ipynb"
# replaces outputs.
NOTEBOOKS ?=
notebooks: $(VENV)/.dev
	@$(INSTALL) nbclient ipykernel
	$(BIN)/python tools/notebooks.py $(NOTEBOOKS)

# Fine-tuning jobs of the docs under TRL, which comes without its list, as above.
trl: $(VENV)/.dev
	@$(INSTALL) --no-lock --no-deps trl==1.16.0
	$(PYTEST) tests/test_post_training.py tests/integrations/test_chat_jobs.py
	SOAK=1 $(PYTEST) tests/text/chat/test_masks_of_public_templates.py
	PYTHONPATH=src $(BIN)/python -W ignore -m bench.compare_chat_masks

# The lower bounds of pyproject.toml on the oldest Python, in an environment of their own, without pandas. Tests of
# extras that are not there are skipped.
OLDEST_PYTHON ?= $(or $(shell command -v python3.11),$(PYTHON))
oldest:
	$(OLDEST_PYTHON) -m venv --clear .venv-oldest
	.venv-oldest/bin/python -m pip install --quiet --no-compile --disable-pip-version-check --editable . \
	    $$($(OLDEST_PYTHON) tools/minimums.py cli processes test yaml zstd)
	.venv-oldest/bin/python -c "import importlib.util as find; assert not find.find_spec('pandas')"
	.venv-oldest/bin/penstock --help > /dev/null
	.venv-oldest/bin/python -m pytest -q -n $(JOBS) -m "not slow" tests/sources tests/writing tests/mixture_files \
	    $$(ls -d tests/engine/*/ | grep -v -e base -e runtime) tests/engine/runtime/test_resume.py tests/test_numbers.py \
	    tests/test_golden.py tests/test_golden_states.py tests/test_goldens.py

pythons:
	for version in $(PYTHONS); do \
	    if ! python$$version -c "" 2> /dev/null; then echo "no python$$version here"; continue; fi; \
	    $(MAKE) test PYTHON=python$$version VENV=.venv-$$version || exit 1; \
	done

bench: $(VENV)/.bench
	$(BIN)/python -m bench

bench-quick: $(VENV)/.bench
	$(BIN)/python -m bench --quick

clean:
	rm -rf .venv .venv-* build dist site demo-data .pytest_cache .ruff_cache .hypothesis
