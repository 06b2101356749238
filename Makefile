# Everything lives in .venv, made on first use; only python3 and make are assumed.
PYTHON ?= python3
BIN := .venv/bin
JOBS ?= 2
SEEDS ?= 50
# Tests start hundreds of interpreters, and each would compile the library anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test check soak formats bench bench-quick docs free-threaded clean
help:
	@echo "make demo   mix, pack, kill, resume and compare, on data this machine already has"
	@echo "make test   every test, doctest, docs code block and example"
	@echo "make check  ruff, pyright, the import floors"
	@echo "make soak   the property tests with SEEDS=50 seeds, over 100,000 random trees and runs, and a million documents"
	@echo "make formats  every format, written by its own tool, which is installed for that"
	@echo "make bench  Penstock beside its peers: writes bench/RESULTS.md; bench-quick: ratios, in under a minute"
	@echo "make free-threaded  the tests of threads on a Python without the interpreter lock, where there is one"
	@echo "make docs   the documentation, warnings are errors"

# An extra's stamp is newer than pyproject.toml once it is installed.
.venv/.demo: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[demo]'
	@touch $@

# torch first and by itself: this version is found as a CPU build where there is one, a range would bring the newest.
.venv/.dev: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@ .venv/.demo

# The last three ask for older versions of what the others need, and for a torchvision that cannot load beside a CPU
# build of torch. What they import is in the extra; they come without their lists.
.venv/.bench: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[bench]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps \
	    litdata==0.2.76 mosaicml-streaming==0.13.0 trl==1.16.0 boto3 s3transfer
	@touch $@

demo: .venv/.demo
	$(BIN)/penstock demo

test: .venv/.dev
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -q

check: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/python -m pytest -q tests/test_house.py

soak: .venv/.dev
	DOCUMENTS=1000000 $(BIN)/python -m pytest -q tests/runtime/executors/test_cluster.py -k shards
	SOAK=1 $(BIN)/python -m pytest -q tests/runtime/executors/test_cluster.py tests/runtime/executors/test_processes.py -k without
	SOAK=1 $(BIN)/python -m pytest -q -s tests/sources/test_first_use.py tests/sources/test_damage.py \
		tests/sources/test_fuzz.py
	SOAK=1 $(BIN)/python -m pytest -n $(JOBS) -q tests/runtime/executors/test_kills.py tests/runtime/executors/test_memory.py
	for seed in $$(seq $(SEEDS)); do $(BIN)/python -m pytest -n $(JOBS) -q -m hypothesis \
		--hypothesis-profile=nightly --hypothesis-seed=$$seed tests || exit 1; done

# The tools that the tests of formats do without; the last two come without their lists, as above.
formats: .venv/.dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[lance,vortex]' \
	    brotli catalogue python-snappy xxhash lightning-utilities tifffile tfrecord crc32c zstd
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps \
	    litdata==0.2.76 mosaicml-streaming==0.13.0 boto3 s3transfer
	$(BIN)/python -m pytest -q tests/sources/test_formats.py tests/sources/test_lance.py tests/sources/test_vortex.py \
	    tests/sources/test_litdata.py tests/sources/test_mds.py

bench: .venv/.bench
	$(BIN)/python -m bench

bench-quick: .venv/.bench
	$(BIN)/python -m bench --quick

# The threads executor on an interpreter without the lock: FREE=path names one, else it is looked for.
free-threaded:
	@$(PYTHON) tools/free_threaded.py $(FREE)

docs: .venv/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean:
	rm -rf .venv build dist site demo-data .pytest_cache .ruff_cache .hypothesis
