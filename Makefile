# Everything runs in .venv, a virtual environment that these targets create in the checkout. Nothing
# outside the checkout changes, so a system Python that forbids `pip install` works, too.
#
#   make demo     train a small network on handwritten digits
#   make test     run the tests, except the slow ones
#   make help     the rest

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c

VENV ?= .venv
# The interpreter for .venv; if empty, the first suitable one of those below.
PYTHON ?=
PYTHONS := $(or $(PYTHON),python3 python3.13 python3.12 python3.11)
CXX ?= g++

# Extras of setup.cfg to install besides those that a target needs; the GPU's with an NVIDIA driver.
CUDA_MAJOR := $(shell nvidia-smi 2>/dev/null | sed -nE 's/.*CUDA [A-Za-z ]*Version: *([0-9]+)\..*/\1/p')
EXTRAS ?= $(if $(filter 12,$(CUDA_MAJOR)),cuda12,$(if $(filter-out 9 10 11,$(CUDA_MAJOR)),cuda13))

# Images of containers often set this, and then each process compiles all modules that it imports,
# which takes twice as long as the rest of importing them.
export PYTHONDONTWRITEBYTECODE :=

DEMO_FLAGS ?=
# These come last, so they override the flags below: PYTEST_FLAGS='-n 0' for one process.
PYTEST_FLAGS ?=
RECORD_FLAGS ?=

comma := ,
space := $(subst ,, )
# The stamp of a list of extras, sorted and without duplicates, so that equal sets share it.
installed = $(VENV)/.installed-$(subst $(space),$(comma),$(sort $(1) $(subst $(comma), ,$(EXTRAS))))
run = $(VENV)/bin/python -m
# Two processes, each with neighboring tests, which share compiled modules.
pytest = $(run) pytest -n 2 --dist worksteal

.PHONY: help demo test test-slow sources test-lasagne test-keras test-theano test-tutorials given-tutorials test-gpu \
  gpu-record doctor docs lint dist venv clean
help:
	@echo "make demo       train a small network on handwritten digits (DEMO_FLAGS='--device cpu')"
	@echo "make test       run the tests, except the slow ones (PYTEST_FLAGS='-k conv')"
	@echo "make test-slow  run the slow tests"
	@echo "make test-lasagne  run Lasagne's tests and its MNIST example (SUITE_FLAGS='-k conv')"
	@echo "make test-keras    run Keras' tests of its Theano backend and its layers"
	@echo "make test-theano   run Theano's tests of tensor.nnet and tensor.signal"
	@echo "make test-tutorials  run the Deep Learning Tutorials (TUTORIALS=path/to/code)"
	@echo "make test-gpu   run the tests that need a GPU"
	@echo "make gpu-record run the GPU tests and write docs/gpu_record.json"
	@echo "make venv       create .venv with the extras in EXTRAS, and with make test's and make demo's"
	@echo "make doctor     show which libraries were found and which are missing"
	@echo "make docs       build the documentation into docs/_build/html"
	@echo "make lint       check style, types and imports"
	@echo "make dist       build the wheel and the source distribution into dist/"
	@echo "make clean      remove .venv and everything that was built"
	@echo
	@echo "Variables: PYTHON=python3.12 selects the interpreter; EXTRAS=cuda13 installs more extras."

demo: $(call installed,demo)
	@$(run) dnnops demo $(DEMO_FLAGS)

test: $(call installed,test demo)
	@$(pytest) -m "not slow" $(PYTEST_FLAGS)

test-slow: $(call installed,test demo)
	@$(pytest) -m slow $(PYTEST_FLAGS)

# The tests of these releases are only in their source distributions, which are not installed.
SOURCES := Lasagne-0.1 Keras-2.3.1 Theano-1.0.5
$(SOURCES:%=$(VENV)/%): $(VENV)/%: | $(VENV)/.made
	@$(run) pip download --disable-pip-version-check --no-input --no-deps \
	  --no-binary $(firstword $(subst -, ,$*)) --dest $(VENV) $(subst -,==,$*)
	@tar -xzf $(VENV)/$*.tar.gz -C $(VENV)
	@rm $(VENV)/$*.tar.gz

# The slow tests run a sample of each.
sources: $(SOURCES:%=$(VENV)/%)

# Arguments of the pytest that runs the tests of one of them.
SUITE_FLAGS ?=
suite = DNNOPS_TEST_SUITE_ARGUMENTS="$(SUITE_FLAGS)" $(run) pytest
suites = tests/theano/test_suites.py
test-lasagne: $(VENV)/Lasagne-0.1 $(call installed,test demo suites)
	@$(suite) '$(suites)::test_suite[lasagne]' $(suites)::test_mnist_example_of_lasagne $(PYTEST_FLAGS)
test-keras: $(VENV)/Keras-2.3.1 $(call installed,test demo suites)
	@$(suite) '$(suites)::test_suite[keras]' $(PYTEST_FLAGS)
test-theano: $(VENV)/Theano-1.0.5 $(call installed,test demo suites)
	@$(suite) '$(suites)::test_suite[theano]' $(PYTEST_FLAGS)

# These are not on the package index, but at https://github.com/lisa-lab/DeepLearningTutorials
TUTORIALS ?=
test-tutorials: given-tutorials $(call installed,test demo suites)
	@TUTORIALS="$(abspath $(TUTORIALS))" $(run) pytest tests/theano/test_tutorials.py $(PYTEST_FLAGS)
given-tutorials:
	@if [ ! -f "$(TUTORIALS)/logistic_sgd.py" ]; then \
	  echo "error: say where the programs are: make test-tutorials TUTORIALS=path/to/DeepLearningTutorials/code" >&2; \
	  exit 1; \
	fi

test-gpu: $(call installed,test demo)
	@$(run) pytest -m gpu $(PYTEST_FLAGS)

gpu-record: $(call installed,test demo)
	@$(run) tests.gpu_record $(RECORD_FLAGS)

venv: $(call installed,test demo)

doctor: $(call installed,demo)
	@$(run) dnnops doctor

docs: $(call installed,docs)
	@$(run) sphinx -W --keep-going -b html docs docs/_build/html

lint: $(call installed,dev)
	@$(run) ruff check .
	@$(run) ruff format --check .
	@$(run) mypy
	@$(VENV)/bin/lint-imports --no-logo --no-cache

dist: $(call installed,dev)
	@rm -rf dist
	@$(run) build

clean:
	rm -rf $(VENV) build dist docs/_build *.egg-info

# One stamp for each set of extras. If it is newer than these files, there is nothing to install.
$(VENV)/.installed-%: setup.cfg setup.py pyproject.toml | $(VENV)/.made
	@echo "Installing dnnops with [$*] into $(VENV); the first time this takes a few minutes."
	@$(run) pip install --no-compile --disable-pip-version-check --no-input -e '.[$*]'
	@touch '$@'

# Report everything that is missing at once, before anything is downloaded.
$(VENV)/.made:
	@python=; missing=; \
	for candidate in $(PYTHONS); do \
	  if "$$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' \
	      >/dev/null 2>&1; then python=$$candidate; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
	  echo "error: no Python 3.11, 3.12 or 3.13 (tried: $(PYTHONS))." >&2; \
	  echo "Install one, for example with: apt-get install python3 python3-venv python3-dev" >&2; \
	  echo "or name it: make PYTHON=/path/to/python3.12 ..." >&2; \
	  exit 1; \
	fi; \
	package=$$(basename "$$python"); \
	need() { echo "error: $$1" >&2; missing="$$missing $$2"; }; \
	"$$python" -c 'import ensurepip, venv' >/dev/null 2>&1 \
	  || need "$$python cannot create virtual environments." "$$package-venv"; \
	"$$python" -c 'import os, sysconfig as s; open(os.path.join(s.get_path("include"), "Python.h"))' \
	  >/dev/null 2>&1 || need "Python.h, the headers of $$python, is missing." "$$package-dev"; \
	command -v $(CXX) >/dev/null 2>&1 \
	  || need "the C++ compiler $(CXX) is missing." "g++"; \
	if [ -n "$$missing" ]; then \
	  echo "Install what is missing as root, then run make again. On Debian and Ubuntu:" >&2; \
	  echo "    apt-get install$$missing" >&2; \
	  exit 1; \
	fi; \
	if [ -n "$$(ls -A $(VENV) 2>/dev/null)" ] \
	    && ! grep -q "^prompt = 'dnnops'" $(VENV)/pyvenv.cfg 2>/dev/null; then \
	  echo "error: $(VENV) exists but was not created by make. Remove it, or use another folder:" >&2; \
	  echo "    make VENV=.venv-dnnops ..." >&2; \
	  exit 1; \
	fi; \
	echo "Creating $(VENV) with $$("$$python" --version)"; \
	"$$python" -m venv --clear --prompt dnnops $(VENV); \
	touch '$@'
