"""Compare speed and memory of backbones of equal size."""

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from mmlaplacian.check_env import check_or_exit

check_or_exit('benchmark_backbone.py')

import torch
from benchmark_ops import machine, peak_memory, repeat
from mmdet.models.backbones import (
    PyramidVisionTransformer,
    PyramidVisionTransformerV2,
    ResNet,
    SwinTransformer,
)

from mmlaplacian.models import LaplacianFormer


def pvt(*depths):
    return lambda: PyramidVisionTransformer(num_layers=list(depths))


def pvt_v2(*depths, mlp_ratios=(8, 8, 4, 4)):
    return lambda: PyramidVisionTransformerV2(
        embed_dims=64, num_layers=list(depths), mlp_ratios=list(mlp_ratios)
    )


def ours(arch):
    return lambda: LaplacianFormer(arch)


#: Each size, and mmdet's backbones of about its parameter count. Ratios are
#: relative to the first of a group.
GROUPS = {
    'tiny': {
        'LaplacianFormer-tiny': ours('tiny'),
        'PVT-Tiny': pvt(2, 2, 2, 2),
        'PVTv2-B1': pvt_v2(2, 2, 2, 2),
    },
    'small': {
        'LaplacianFormer-small': ours('small'),
        'PVT-Small': pvt(3, 4, 6, 3),
        'PVTv2-B2': pvt_v2(3, 4, 6, 3),
        'Swin-T': SwinTransformer,
        'ResNet-50': lambda: ResNet(depth=50),
    },
    'medium': {
        'LaplacianFormer-medium': ours('medium'),
        'PVT-Medium': pvt(3, 4, 18, 3),
        'PVTv2-B3': pvt_v2(3, 4, 18, 3),
    },
    'large': {
        'LaplacianFormer-large': ours('large'),
        'PVT-Large': pvt(3, 8, 27, 3),
        'PVTv2-B4': pvt_v2(3, 8, 27, 3),
    },
    'huge': {
        'LaplacianFormer-huge': ours('huge'),
        'PVTv2-B5': pvt_v2(3, 6, 40, 3, mlp_ratios=(4, 4, 4, 4)),
    },
}
SIDES = ((224, 224), (448, 448), (640, 640), (800, 1344))
#: Each comparison is repeated until the slowest model took this long.
BUDGET_S = 6.0
ROUNDS = 15


def forward_only(model, images) -> Callable:
    model.eval()

    def run():
        with torch.no_grad():
            return model(images)

    return run


def training_step(model, images) -> Callable:
    model.train()

    def run():
        model.zero_grad(set_to_none=True)
        sum(out.float().mean() for out in model(images)).backward()

    return run


#: Title, function that prepares a pass, and dtype, by name.
PASSES = {
    'forward': ('forward', forward_only, 'float32'),
    'training': ('forward and backward', training_step, 'float32'),
    'bfloat16': ('forward', forward_only, 'bfloat16'),
}


def side(text: str) -> tuple[int, int]:
    """``'800x1344'`` as (800, 1344)."""
    height, _, width = text.partition('x')
    if not (height.isdigit() and width.isdigit() and int(height) * int(width)):
        raise argparse.ArgumentTypeError(
            f'expected HEIGHTxWIDTH such as 800x1344, got {text!r}'
        )
    return int(height), int(width)


def under_autocast(run, device) -> Callable:
    def autocast():
        with torch.autocast(device.type, torch.bfloat16):
            return run()

    return autocast


def measure(models, images, device, prepare, dtype) -> dict[str, dict]:
    """Median seconds of interleaved rounds, and peak bytes, of each model."""
    runs = {}
    for name, model in models.items():
        run = prepare(model, images)
        runs[name] = (
            under_autocast(run, device) if dtype == 'bfloat16' else run
        )
    # Measuring the memory also warms up.
    results = {
        name: dict(memory=peak_memory(run, device), times=[])
        for name, run in runs.items()
    }
    rounds = 0
    while rounds < 2 or (
        rounds < ROUNDS
        and max(sum(row['times']) for row in results.values()) < BUDGET_S
    ):
        rounds += 1
        for name, run in runs.items():
            results[name]['times'].append(repeat(run, 1, device))
    for row in results.values():
        row['seconds'] = statistics.median(row.pop('times'))
    return results


def draw(rows: list[dict], path: Path) -> None:
    """Plot time and memory of forward passes against the number of pixels."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout='constrained')
    axes = figure.subplots(1, 2)
    names = list(dict.fromkeys(row['name'] for row in rows))
    for axis, key, label, unit in (
        (axes[0], 'seconds', 'forward, s', 1),
        (axes[1], 'memory', 'peak memory above the weights, MB', 1e6),
    ):
        for name in names:
            line = [row for row in rows if row['name'] == name]
            axis.plot(
                [row['height'] * row['width'] / 1e6 for row in line],
                # The memory is None where the system cannot measure it.
                [
                    math.nan if row[key] is None else row[key] / unit
                    for row in line
                ],
                marker='o',
                label=name,
                linewidth=2.2 if name.startswith('Laplacian') else 1.2,
            )
        axis.set_xlabel('megapixels')
        axis.set_ylabel(label)
        axis.grid(alpha=0.3)
        axis.set_xlim(left=0)
        axis.set_ylim(bottom=0)
    axes[0].legend(fontsize='small')
    figure.savefig(path, dpi=130)


def tables(rows: list[dict]) -> Iterator[list[dict]]:
    """Rows of each table, one for each group of backbones and kind of pass."""
    keys = dict.fromkeys(
        (row['group'], row['what'], row['dtype']) for row in rows
    )
    for key in keys:
        yield [
            row
            for row in rows
            if (row['group'], row['what'], row['dtype']) == key
        ]


def is_forward(row: dict) -> bool:
    title, _, dtype = PASSES['forward']
    return (row['what'], row['dtype']) == (title, dtype)


def markdown(results: dict) -> str:
    """Tables of the time relative to ours, and of memory."""
    lines = [f'{results["machine"]}; PyTorch {results["torch"]}; batch 1']
    for rows in tables(results['rows']):
        names = list(dict.fromkeys(row['name'] for row in rows))
        sizes = {row['name']: row['parameters'] for row in rows}
        title = rows[0]['what'].capitalize()
        if rows[0]['dtype'] != 'float32':
            title += f' under {rows[0]["dtype"]} autocast'
        own, *peers = (f'{name} ({sizes[name] / 1e6:.1f} M)' for name in names)
        header = [
            *('threads', 'image', f'{own}, ms'),
            *peers,
            *(f'memory, MB: {names[0]}', *names[1:]),
        ]
        lines += [
            '',
            f'{title}:',
            '',
            f'| {" | ".join(header)} |',
            '|' + len(header) * '---|',
        ]
        places = dict.fromkeys(
            (row['threads'], row['height'], row['width']) for row in rows
        )
        for place in places:
            line = {
                row['name']: row
                for row in rows
                if (row['threads'], row['height'], row['width']) == place
            }
            cells = [
                str(place[0]),
                f'{place[1]} x {place[2]}',
                f'{line[names[0]]["seconds"] * 1e3:.0f}',
                *(f'{line[name]["ratio"]:.2f}' for name in names[1:]),
            ]
            for name in names:
                memory = line[name]['memory']
                cells.append('' if memory is None else f'{memory / 1e6:.0f}')
            lines.append(f'| {" | ".join(cells)} |')
    return '\n'.join(lines) + '\n'


def run(args) -> dict:
    """Measure the chosen groups and kinds of pass."""
    device = torch.device(args.device)
    if device.type == 'cuda' and not torch.cuda.is_available():
        sys.exit('benchmark_backbone.py: PyTorch sees no GPU')
    all_threads = torch.get_num_threads()
    threads = args.threads or sorted({1, all_threads})
    torch.manual_seed(0)
    rows = []
    start = time.time()
    for group in args.groups:
        models = {
            name: build().to(device) for name, build in GROUPS[group].items()
        }
        for name in args.passes:
            title, prepare, dtype = PASSES[name]
            for count in threads:
                torch.set_num_threads(count)
                for height, width in args.sides:
                    images = torch.randn(1, 3, height, width, device=device)
                    found = measure(models, images, device, prepare, dtype)
                    base = next(iter(found.values()))['seconds']
                    for peer, row in found.items():
                        rows.append(
                            dict(
                                group=group,
                                name=peer,
                                what=title,
                                dtype=dtype,
                                threads=count,
                                height=height,
                                width=width,
                                parameters=sum(
                                    p.numel()
                                    for p in models[peer].parameters()
                                ),
                                ratio=row['seconds'] / base,
                                **row,
                            )
                        )
                    print(
                        f'{time.time() - start:.0f} s: {group}, {title}, '
                        f'{dtype}, {count} threads, {height} x {width}: '
                        + ', '.join(
                            f'{peer} {row["seconds"] * 1e3:.0f} ms'
                            for peer, row in found.items()
                        ),
                        flush=True,
                    )
    return dict(machine=machine(device), torch=torch.__version__, rows=rows)


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        '--device', default='cpu', help='cpu or cuda (default: cpu)'
    )
    parser.add_argument(
        '--groups',
        nargs='+',
        choices=GROUPS,
        default=list(GROUPS),
        help='sizes to compare with their peers (default: all)',
    )
    parser.add_argument(
        '--threads',
        nargs='+',
        type=int,
        help='thread counts (default: 1 and all)',
    )
    parser.add_argument(
        '--sides',
        nargs='+',
        type=side,
        default=SIDES,
        metavar='HEIGHTxWIDTH',
        help='image sizes (default: four, from 224x224 to 800x1344)',
    )
    parser.add_argument(
        '--passes',
        nargs='+',
        choices=PASSES,
        default=list(PASSES),
        help='kinds of pass to measure (default: all)',
    )
    parser.add_argument(
        '--json', type=Path, help='write the figures to this file'
    )
    parser.add_argument(
        '--markdown', type=Path, help='write the tables to this file'
    )
    parser.add_argument(
        '--read', type=Path, help='read an earlier --json instead of measuring'
    )
    parser.add_argument(
        '--plot',
        type=Path,
        help='plot the forward pass of the first group to this file',
    )
    args = parser.parse_args()
    if args.read and not args.read.is_file():
        parser.error(f'--read: expected a file, found none at {args.read}')
    return args


def main():
    args = parse_args()
    results = json.loads(args.read.read_text()) if args.read else run(args)
    text = markdown(results)
    print(text)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + '\n')
    if args.markdown:
        args.markdown.write_text(text)
    if args.plot:
        forward = (t for t in tables(results['rows']) if is_forward(t[0]))
        first = next(forward, None)
        if first is None:
            sys.exit(
                'benchmark_backbone.py: --plot: no forward pass was timed'
            )
        draw(
            [r for r in first if r['threads'] == first[0]['threads']],
            args.plot,
        )


if __name__ == '__main__':
    main()
