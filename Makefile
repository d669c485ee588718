# Each target sets up what it needs; `make PYTHON=python3.12 …` picks another interpreter.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
STAMP := $(VENV)/.installed
LOG := $(VENV)/install.log

# pip's own lines stay in the log; a terminal or a CI log sees the large downloads as they start.
PROGRESS := awk '/Downloading .*\(([0-9][0-9]+[0-9.]* MB|[0-9.]+ GB)\)/ {print "  downloading", $$2, $$3, $$4; fflush()} \
	/^Installing collected packages/ {print "  installing", NF - 3, "packages"; fflush()}'

# Other systems for `outrider bench --peers`, each with its libraries in an environment of its own.
PEERS := .venv-peers
COMMA := ,
GPU := $(shell nvidia-smi -L 2>/dev/null | head -n 1)
CUDA := $(shell command -v nvcc 2>/dev/null)

.PHONY: help setup test lint demo bench peers clean

help:
	@echo "make demo    plain against speculative decoding of a small model, side by side"
	@echo "make bench   the quick benchmark, with its report in bench-results"
	@echo "make peers   other systems to compare with, in $(PEERS) (llama.cpp is compiled)"
	@echo "make test    style, types, then the fast and the slow tests"
	@echo "make lint    style and types only"
	@echo "make setup   the environment in $(VENV), which the others make when it is missing"
	@echo "make clean   remove the environment and all build output"

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit("Outrider needs Python 3.11 or newer, and $(PYTHON) is %d.%d; run: make PYTHON=python3.12 $(MAKECMDGOALS)" % v[:2])'
	@echo "setting up $(VENV) (the first time takes some minutes; details in $(LOG))"
	@$(PYTHON) -m venv $(VENV)
	@set -o pipefail; $(VENV)/bin/python -m pip install -c constraints.txt -e '.[test]' 2>&1 \
		| tee $(LOG) | $(PROGRESS) \
		|| { tail -n 20 $(LOG); echo "setting up failed; the whole log is $(LOG)"; exit 1; }
	@touch $@

lint: $(STAMP)
	@echo "checking style (ruff)"
	@$(VENV)/bin/ruff check --quiet .
	@$(VENV)/bin/ruff format --check --quiet .
	@echo "checking types (mypy)"
	@$(VENV)/bin/mypy --no-error-summary

# Tiny models gain nothing from threads, so the cores are shared out by test files.
PYTEST = OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest -q -n auto --dist loadgroup

test: lint
	@echo "running the fast tests"
	@$(PYTEST) -m "not slow"
	@echo "running the slow tests (these fetch the default model once)"
	@$(PYTEST) -m slow

demo: $(STAMP)
	@$(VENV)/bin/python -m outrider.cli.demo

bench: $(STAMP)
	@$(VENV)/bin/outrider bench --quick --out bench-results

# transformers is a peer that Outrider needs anyway.
peers: $(STAMP) $(PEERS)/openvino/.installed $(if $(GPU),$(PEERS)/vllm/.installed) $(PEERS)/llama.cpp/.installed
	@$(if $(GPU),,echo "vllm is left out: it needs an NVIDIA GPU, and nvidia-smi finds none")
	@echo "ready: $(VENV)/bin/outrider bench --peers transformers,openvino,llama.cpp$(if $(GPU),$(COMMA)vllm)"

$(PEERS)/openvino/.installed: PACKAGE := openvino-genai==2026.4.1.0
$(PEERS)/vllm/.installed: PACKAGE := vllm==0.26.0
$(PEERS)/llama.cpp/.installed: PACKAGE := llama-cpp-python==0.3.36
# Without the parts for images, whose compilation takes as long as all else.
$(PEERS)/llama.cpp/.installed: export CMAKE_ARGS ?= -DLLAVA_BUILD=OFF $(if $(and $(GPU),$(CUDA)),-DGGML_CUDA=ON)

$(PEERS)/%/.installed:
	@echo "installing $(PACKAGE) into $(PEERS)/$*$(if $(filter llama.cpp,$*),$(COMMA) which compiles for some minutes) (details in $(PEERS)/$*.log)"
	@$(PYTHON) -m venv $(PEERS)/$*
	@$(PEERS)/$*/bin/python -m pip install $(PACKAGE) >$(PEERS)/$*.log 2>&1 \
		|| { tail -n 20 $(PEERS)/$*.log; echo "installing $* failed; the whole log is $(PEERS)/$*.log"; exit 1; }
	@touch $@

clean:
	@echo "removing the environment and all build output"
	@rm -rf $(VENV) $(PEERS) bench-results build dist src/*.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
	@find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
