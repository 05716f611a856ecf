"""Measure forward + backward passes of a backbone on a GPU.

    python tools/gpu/benchmark_step.py --arch tiny --json step.json

Each shape runs in float32 and under bfloat16 autocast. The time is the median
of some steps on random images, after a warm-up; the memory is the peak.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path

import torch

from cuda_ops.common import launcher
from mmlaplacian.models import LaplacianFormer

#: (batch, height, width) of the images.
SHAPES = ((64, 224, 224), (2, 800, 1344))
WARM_UP, STEPS = 3, 10


def step(model, images, dtype) -> None:
    """Run forward and backward on one batch."""
    model.zero_grad(set_to_none=True)
    with torch.autocast('cuda', dtype, enabled=dtype != torch.float32):
        outs = model(images)
        loss = sum(out.float().mean() for out in outs)
    loss.backward()


def measure(arch: str, shape: tuple[int, int, int], dtype) -> dict:
    """Time and peak memory of one shape, as a row of the table."""
    torch.manual_seed(0)
    model = LaplacianFormer(arch=arch).cuda().train()
    batch, height, width = shape
    images = torch.randn(batch, 3, height, width, device='cuda')
    for _ in range(WARM_UP):
        step(model, images, dtype)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(STEPS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        step(model, images, dtype)
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return {
        'arch': arch,
        'batch': batch,
        'height': height,
        'width': width,
        'dtype': str(dtype).removeprefix('torch.'),
        'ms': round(statistics.median(times), 2),
        'images_per_s': round(1e3 * batch / statistics.median(times), 1),
        'peak_mb': round(torch.cuda.max_memory_allocated() / 1e6),
    }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        '--arch', default='tiny', help='size of the backbone (default: tiny)'
    )
    parser.add_argument(
        '--json', type=Path, help='write the figures to this file'
    )
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit('ERROR: PyTorch sees no GPU')
    result = {
        'gpu': torch.cuda.get_device_name(),
        'torch': torch.__version__,
        'path': launcher.status(torch.cuda.current_device()),
        'rows': [],
    }
    for shape in SHAPES:
        for dtype in (torch.float32, torch.bfloat16):
            try:
                row = measure(args.arch, shape, dtype)
            except torch.cuda.OutOfMemoryError as error:
                row = {
                    'shape': shape,
                    'dtype': str(dtype),
                    'error': str(error),
                }
            torch.cuda.empty_cache()
            print(row, flush=True)
            result['rows'].append(row)
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + '\n')


if __name__ == '__main__':
    main()
