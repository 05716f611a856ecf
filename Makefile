# PYTHON: the interpreter of the environment, 3.10 to 3.12.
# TORCH: what pip installs as PyTorch in a new environment, such as
#     TORCH="torch==2.12.0".
# VENV: the environment's folder; VENV_PRETRAIN: that of the second one, for
#     mmpretrain, with which TORCH must name a torchvision, too.
PYTHON ?= python3
TORCH ?=
VENV ?= .venv
VENV_PRETRAIN ?= .venv-pretrain

CONFIG := configs/digits/mask-rcnn_laplacianformer-nano_fpn_digits.py
WORK := work_dirs/demo
SCENES := data/digits/annotations/val.json
# A model this small gains nothing from more threads.
THREADS := $(shell n=$$(nproc 2>/dev/null || echo 2); echo $$((n < 4 ? n : 4)))
OMP := $(THREADS)
# The set-up knows whether mmcv can follow a model onto a GPU.
RUN = $$(cat "$(VENV)/mmlaplacian-device.txt") OMP_NUM_THREADS=$(OMP) \
    "$(VENV)/bin/python"

.PHONY: demo test test-pretrain lint kernels env env-pretrain clean
.DELETE_ON_ERROR:

demo: env $(SCENES)
	$(RUN) tools/train.py $(CONFIG) --work-dir $(WORK)
	$(RUN) tools/test.py $(CONFIG) "$$(cat $(WORK)/last_checkpoint)" \
	    --work-dir $(WORK) --show-dir $(WORK)/pictures
	$(RUN) tools/misc/contact_sheet.py $(WORK)/pictures $(WORK)/predictions.jpg
	@echo "ground truth (left) beside predictions (right):" \
	    $(WORK)/predictions.jpg

$(SCENES): mmlaplacian/datasets/digits.py mmlaplacian/datasets/coco.py | env
	$(RUN) tools/prepare_data.py digits --out data/digits

# A process for each core, with one thread each; tests of a file share fixtures.
test: OMP := 1
test: lint
	$(RUN) -m pytest --require-openmmlab --require-compiled \
	    -n $(THREADS) --dist loadfile --no-loadscope-reorder

test-pretrain: env-pretrain
	OMP_NUM_THREADS=$(THREADS) "$(VENV_PRETRAIN)/bin/python" -m pytest \
	    --require-mmpretrain --require-compiled tests/pretrain \
	    tests/ops/test_compiled.py tests/ops/test_laplacian_kernel.py \
	    tests/ops/test_newton_schulz.py

lint: env
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .

# Needs nvcc; without it a GPU's kernels are compiled at their first use.
kernels: env
	$(RUN) tools/gpu/build_kernels.py

env:
	$(PYTHON) tools/misc/setup_env.py --venv "$(VENV)" --torch "$(TORCH)"

env-pretrain:
	$(PYTHON) tools/misc/setup_env.py --pretrain --venv "$(VENV_PRETRAIN)" \
	    --torch "$(TORCH)"

clean:
	rm -rf build dist *.egg-info
