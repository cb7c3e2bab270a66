PYTHON ?= .venv/bin/python

.PHONY: venv test lint format docs demo picture ci

venv:
	python3.11 -m venv .venv
	.venv/bin/pip install -e ".[test,lint]"

test:
	$(PYTHON) -m pytest -n 2 --dist loadfile

lint:
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy

format:
	$(PYTHON) -m ruff check --fix .
	$(PYTHON) -m ruff format .

docs:
	$(PYTHON) docs/generate.py

demo:
	rm -rf demo_out
	$(PYTHON) -m mindrlhf_msprobe demo --output demo_out

picture: demo
	$(PYTHON) docs/answer.py demo_out/run_a demo_out/run_b --lang en docs/answer.svg
	$(PYTHON) docs/answer.py demo_out/run_a demo_out/run_b --lang zh docs/answer_zh.svg

ci:
	.ci/run
