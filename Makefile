# make train | test | lab | clean       (Windows: README names the python commands)
# Another interpreter: make test PYTHON=python3.12
# Every path is relative, so that the checkout may lie in a folder with spaces in its name.

PYTHON ?= python3
PY := .venv/bin/python
# Python processes under it may talk to this machine only; not for the installation.
OFFLINE := PYTHONPATH="$(CURDIR)/tests/no_network"

unexport MPLBACKEND

.PHONY: train test lab clean

train: .venv/.installed
	$(PY) -m trinity_mini train --preset mini --figures figures

# One thread a process: two on a busy small machine are many times slower. Nothing asks the network.
test: export OMP_NUM_THREADS = 1
test: export MKL_NUM_THREADS = 1
test: export HF_HUB_OFFLINE = 1
test: export TOKENIZERS_PARALLELISM = false
test: export TQDM_DISABLE = 1
test: export LITELLM_LOCAL_MODEL_COST_MAP = True
test: .venv/.installed
	$(PY) -m ruff check .
	$(OFFLINE) $(PY) -m pytest -n 2 --dist loadfile --cov=trinity_mini --cov-report=term --cov-fail-under=90
	$(OFFLINE) $(PY) -m pytest -n 2 --dist loadfile --nbval-lax --nbval-current-env --nbval-cell-timeout=300 \
	  --nbval-sanitize-with tests/nbval_sanitize.cfg notebooks/*.ipynb

lab: .venv/.installed
	cd notebooks && ../$(PY) -m jupyterlab

# Caches only: the environment, runs and data stay.
clean:
	rm -rf .pytest_cache .ruff_cache .coverage build __pycache__
	find notebooks tests trinity_mini -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.installed: pyproject.toml | $(PY)
	$(PY) -m pip install --disable-pip-version-check -e ".[dev,llm]"
	touch $@

$(PY):
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; (3, 11) <= v < (3, 14) or sys.exit( \
	  "Python 3.11, 3.12 or 3.13 is needed, $(PYTHON) is %d.%d; try: make PYTHON=python3.12" % v)'
	$(PYTHON) -m venv .venv || { rm -rf .venv; exit 1; }
