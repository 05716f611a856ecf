"""Compare iterations that AttentionDiagnosticsHook records with the others.

    python tools/benchmarks/benchmark_diagnostics.py --arch nano tiny

A backbone and a linear layer train on random images. The hook records every
second iteration, so that changes of the machine affect both kinds.
"""

import argparse
import itertools
import statistics
import tempfile
import time

import torch
import torch.nn.functional as F
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.runner import Runner
from torch import nn

from mmlaplacian.hooks.attention_diagnostics import AttentionDiagnosticsHook
from mmlaplacian.models import ARCHS, LaplacianFormer

#: Iterations before the measured ones.
WARM_UP = 4
DEFAULT_INTERVAL = AttentionDiagnosticsHook().interval


class Classifier(BaseModel):
    """Backbone and a linear layer of ten classes."""

    def __init__(self, arch: str):
        super().__init__()
        self.backbone = LaplacianFormer(arch)
        self.head = nn.Linear(self.backbone.out_channels[-1], 10)

    def forward(self, images, labels, mode='tensor'):
        scores = self.head(self.backbone(images)[-1].mean((2, 3)))
        return dict(loss=F.cross_entropy(scores, labels))


class Clock(Hook):
    """Records the start of each iteration, before all other hooks."""

    priority = 'HIGHEST'

    def __init__(self):
        self.times = []

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.times.append(time.perf_counter())


def measure(arch: str, side: int, batch: int, pairs: int, folder: str):
    """Median seconds of ordinary and of recorded iterations."""
    iterations = WARM_UP + 2 * pairs
    clock = Clock()
    Runner(
        model=Classifier(arch),
        work_dir=folder,
        train_dataloader=dict(
            # The same image many times takes no memory.
            dataset=[(torch.randn(3, side, side), 0)]
            * (batch * (iterations + 1)),
            batch_size=batch,
            num_workers=0,
            sampler=dict(type='DefaultSampler', shuffle=False),
            collate_fn=dict(type='default_collate'),
        ),
        train_cfg=dict(by_epoch=False, max_iters=iterations + 1),
        optim_wrapper=dict(optimizer=dict(type='AdamW')),
        default_hooks=dict(
            logger=dict(type='LoggerHook', interval=10**6), checkpoint=None
        ),
        custom_hooks=[
            clock,
            dict(type='AttentionDiagnosticsHook', interval=2),
        ],
        log_level='ERROR',
        experiment_name=f'benchmark_diagnostics_{arch}',
    ).train()
    seconds = [b - a for a, b in itertools.pairwise(clock.times)]
    ordinary, recorded = seconds[WARM_UP::2], seconds[WARM_UP + 1 :: 2]
    return statistics.median(ordinary), statistics.median(recorded)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        '--arch',
        nargs='+',
        choices=ARCHS,
        default=['nano', 'tiny'],
        help='sizes of the backbone (default: nano tiny)',
    )
    parser.add_argument(
        '--side', type=int, default=224, help='side of the images in pixels'
    )
    parser.add_argument(
        '--batch', type=int, default=2, help='images per iteration'
    )
    parser.add_argument(
        '--pairs',
        type=int,
        default=30,
        help='number of iterations of each kind',
    )
    args = parser.parse_args()
    print(
        '| arch | image | batch | ordinary, ms | recorded, ms '
        f'| share at interval {DEFAULT_INTERVAL} |\n|---|---|---|---|---|---|'
    )
    for arch in args.arch:
        with tempfile.TemporaryDirectory() as folder:
            ordinary, recorded = measure(
                arch, args.side, args.batch, args.pairs, folder
            )
        share = (recorded / ordinary - 1) / DEFAULT_INTERVAL
        print(
            f'| {arch} | {args.side} x {args.side} | {args.batch} '
            f'| {1e3 * ordinary:.1f} | {1e3 * recorded:.1f} | {share:.2%} |',
            flush=True,
        )


if __name__ == '__main__':
    main()
