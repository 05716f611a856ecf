"""Trainings of a small classifier with the diagnostics hook, for tests."""

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from mmengine.model import BaseModel
from mmengine.runner import Runner
from torch import nn

from mmlaplacian.models import LaplacianAttention, LaplacianFormer

IMAGE = (3, 64, 96)
NYSTROM = {
    *('residual', 'effective_rank', 'landmarks', 'off_diagonal', 'dead_share')
}


class Classifier(BaseModel):
    """Backbone and a linear layer."""

    def __init__(self, amp=False, **backbone):
        super().__init__()
        torch.manual_seed(0)
        self.amp = amp
        self.backbone = LaplacianFormer(**{'arch': 'nano', **backbone})
        self.head = nn.Linear(128, 10)
        self.losses = []

    def forward(self, images, labels, mode='tensor'):
        images = images.to(self.head.weight.dtype)
        with torch.autocast('cpu', torch.bfloat16, enabled=self.amp):
            scores = self.head(self.backbone(images)[-1].mean((2, 3)))
            loss = F.cross_entropy(scores.float(), labels)
        if mode == 'loss':
            self.losses.append(loss.item())
            return dict(loss=loss)
        return scores


def data(number):
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(number, *IMAGE, generator=generator)
    return [(image, i % 10) for i, image in enumerate(images)]


def loader(number):
    return dict(
        dataset=data(number),
        batch_size=2,
        num_workers=0,
        sampler=dict(type='DefaultSampler', shuffle=False),
        collate_fn=dict(type='default_collate'),
    )


HOOK = dict(type='AttentionDiagnosticsHook', interval=2)
#: Arguments for one iteration, which is recorded.
ONCE = dict(HOOK, interval=1), dict(by_epoch=False, max_iters=1)


def train(
    model,
    folder,
    hook=HOOK,
    loop=None,
    backends=('LocalVisBackend',),
    more_hooks=None,
    number=6,
    **more,
):
    """Train, and return the folder of the logs."""
    runner = Runner(
        model=model,
        work_dir=str(folder),
        train_dataloader=loader(number),
        train_cfg=loop or dict(by_epoch=True, max_epochs=2),
        optim_wrapper=dict(optimizer=dict(type='SGD', lr=0.01)),
        custom_hooks=[dict(hook)] if hook else None,
        default_hooks=dict(
            logger=dict(type='LoggerHook', interval=1),
            checkpoint=None,
            **more_hooks or {},
        ),
        visualizer=dict(
            type='Visualizer', vis_backends=[dict(type=b) for b in backends]
        ),
        experiment_name=f'{folder.parent.name}_{folder.name}',
        randomness=dict(seed=0),
        **more,
    )
    runner.train()
    return Path(runner.log_dir)


def records(log_dir):
    """Records of the hook in scalars.json."""
    lines = (log_dir / 'vis_data/scalars.json').read_text().splitlines()
    found = [json.loads(line) for line in lines]
    return [r for r in found if any(k.startswith('attention/') for k in r)]


def names(record, stage):
    """Names of the figures of a stage in a record."""
    start = f'attention/stage{stage}/'
    return {k.removeprefix(start) for k in record if k.startswith(start)}


def layers_of(model):
    return [m for m in model.modules() if isinstance(m, LaplacianAttention)]
