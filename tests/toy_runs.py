"""Short trainings with mmengine's Runner, for tests of its logs."""

import itertools
import time

import torch
from mmengine.config import Config
from mmengine.evaluator import BaseMetric
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.registry import DATASETS, HOOKS, METRICS, MODELS
from mmengine.runner import Runner

NUMBER = itertools.count()


@MODELS.register_module()
class ToyModel(BaseModel):
    """Model with one weight, whose loss is NaN in some iterations."""

    def __init__(self, not_finite=(), width=1):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(width))
        self.not_finite = not_finite
        self.number = 0

    def forward(self, inputs, data_samples=None, mode='loss'):
        if mode != 'loss':
            return [self.weight]
        loss = self.weight.square().sum()
        if self.number in self.not_finite:
            loss = loss.detach() * float('nan')
            loss.requires_grad_()
        return dict(loss=loss)


@DATASETS.register_module()
class ToyData(torch.utils.data.Dataset):
    METAINFO = {}

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return dict(inputs=0.0)


@METRICS.register_module()
class ToyMetric(BaseMetric):
    """Metric that counts evaluations, so that each has its own value."""

    default_prefix = 'accuracy'
    counts = itertools.count(1)

    def __init__(self, value=None, **kwargs):
        super().__init__(**kwargs)
        self.value = value

    def process(self, data_batch, data_samples):
        self.results.append(0)

    def compute_metrics(self, results):
        value = next(self.counts) if self.value is None else self.value
        return dict(top1=float(value))


@HOOKS.register_module()
class ToyHook(Hook):
    """Hook that gives the model its iteration, and can stop the training."""

    def __init__(self, stop=None):
        self.stop = stop

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        runner.model.number = runner.iter + 1
        if runner.iter + 1 == self.stop:
            raise KeyboardInterrupt


def toy_config(max_epochs=3, max_iters=None, **changes):
    """Config that logs all of four iterations per epoch, and validates."""
    by_epoch = max_iters is None
    loader = dict(
        batch_size=1,
        num_workers=0,
        dataset=dict(type='ToyData'),
        sampler=dict(type='DefaultSampler', shuffle=False),
    )
    endless = dict(loader, sampler=dict(type='InfiniteSampler'))
    loops = (
        dict(by_epoch=True, max_epochs=max_epochs)
        if by_epoch
        else dict(by_epoch=False, max_iters=max_iters, val_interval=4)
    )
    logger = dict(interval=1, log_metric_by_epoch=by_epoch)
    saver = dict(by_epoch=by_epoch, interval=1 if by_epoch else 4)
    config = dict(
        default_scope='mmengine',
        model=dict(type='ToyModel'),
        train_dataloader=loader if by_epoch else endless,
        val_dataloader=loader,
        test_dataloader=loader,
        train_cfg=loops,
        val_cfg=dict(),
        test_cfg=dict(),
        val_evaluator=dict(type='ToyMetric'),
        test_evaluator=dict(type='ToyMetric'),
        optim_wrapper=dict(optimizer=dict(type='SGD', lr=0.01)),
        default_hooks=dict(
            logger=dict(type='LoggerHook', **logger),
            checkpoint=dict(type='CheckpointHook', **saver),
        ),
        log_processor=dict(by_epoch=by_epoch, window_size=1),
        randomness=dict(seed=0),
        load_from=None,
        resume=False,
    )
    config = Config(config)
    config.merge_from_dict(changes)
    return config


def _runner(config, work):
    config = config.copy()
    config.work_dir = str(work)
    config.experiment_name = f'toy{next(NUMBER)}'
    # The name of a session's folder is the time in seconds.
    while (work / time.strftime('%Y%m%d_%H%M%S')).exists():
        time.sleep(0.05)
    return Runner.from_cfg(config)


def toy_train(work, config=None, stop=None, resume=False):
    """Train in a folder until the end or the iteration ``stop``."""
    config = (config or toy_config()).copy()
    config.default_hooks.toy = dict(type='ToyHook', stop=stop)
    config.resume = resume
    if resume:
        config.load_from = (work / 'last_checkpoint').read_text()
    runner = _runner(config, work)
    try:
        runner.train()
    except KeyboardInterrupt:
        assert stop


def toy_test(work, checkpoint, config=None):
    """Test a checkpoint of a folder in it."""
    config = (config or toy_config()).copy()
    config.load_from = str(work / checkpoint)
    _runner(config, work).test()
