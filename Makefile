# PYTHON: the interpreter of the environment, 3.10 to 3.12.
# TORCH: what pip installs as PyTorch, such as TORCH="torch==2.12.0".
# VENV: the environment's folder.
PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV ?= .venv

CONFIG := configs/digits/mask-rcnn_laplacianformer-nano_fpn_digits.py
WORK := work_dirs/demo
RUN := $(VENV)/bin/python
# A model this small gains nothing from more threads.
THREADS := $(shell n=$$(nproc); echo $$((n < 4 ? n : 4)))

.PHONY: demo test lint env clean

demo: env data/digits/annotations/val.json
	OMP_NUM_THREADS=$(THREADS) $(RUN) tools/train.py $(CONFIG) --work-dir $(WORK)
	OMP_NUM_THREADS=$(THREADS) $(RUN) tools/test.py $(CONFIG) \
	    $$(cat $(WORK)/last_checkpoint) --work-dir $(WORK) \
	    --show-dir $(WORK)/pictures
	$(RUN) tools/contact_sheet.py $(WORK)/pictures $(WORK)/predictions.jpg
	@echo "ground truth (left) beside predictions (right):" \
	    $(WORK)/predictions.jpg

data/digits/annotations/val.json: | env
	$(RUN) tools/prepare_data.py digits --out data/digits

test: lint
	OMP_NUM_THREADS=$(THREADS) $(RUN) -m pytest

lint: env
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .

env:
	$(PYTHON) tools/setup_env.py --venv $(VENV) --torch "$(TORCH)"

clean:
	rm -rf build dist *.egg-info work_dirs
