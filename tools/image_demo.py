"""Draw what a detector finds on images: boxes, masks and class names.

For each image NAME, OUT_DIR/NAME is the picture and OUT_DIR/NAME.json holds
its objects: class, score, box (x1, y1, x2, y2 in pixels) and mask (COCO RLE).
"""

import argparse
import json
import sys
from pathlib import Path

from mmlaplacian.check_env import check_or_exit

check_or_exit('image_demo.py')

import mmcv
import torch
from mmdet.apis import inference_detector, init_detector
from mmdet.registry import MODELS
from mmdet.structures.mask import encode_mask_results
from mmengine.device import get_device
from mmengine.registry import VISUALIZERS, init_default_scope

from mmlaplacian import apis
from mmlaplacian.errors import InputError

SUFFIXES = {'.bmp', '.jpeg', '.jpg', '.png', '.tif', '.tiff', '.webp'}


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('input', help='image, or folder of images')
    parser.add_argument('config', help='config file')
    parser.add_argument('checkpoint', help='checkpoint file')
    parser.add_argument('--out-dir', default='outputs', help='target folder')
    parser.add_argument('--score-thr', type=float, default=0.3)
    parser.add_argument(
        '--device', default=get_device(), help='default: %(default)s'
    )
    return parser.parse_args()


def find_images(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise InputError(
            f'input: expected an image or a folder, found none at '
            f'{path.absolute()}'
        )
    images = [
        p for p in sorted(path.iterdir()) if p.suffix.lower() in SUFFIXES
    ]
    if not images:
        raise InputError(
            f'input: {path} holds no image ({", ".join(sorted(SUFFIXES))})'
        )
    return images


def objects_of(prediction, classes, score_thr: float) -> list[dict]:
    """Objects above a score, as plain values for JSON."""
    prediction = prediction[prediction.scores >= score_thr].cpu()
    objects = [
        dict(
            label=int(label),
            score=round(float(score), 4),
            box=[round(float(edge), 2) for edge in box],
        )
        for label, score, box in zip(
            prediction.labels,
            prediction.scores,
            prediction.bboxes,
            strict=True,
        )
    ]
    for found in objects:
        found['class'] = classes[found['label']]
    if 'masks' in prediction:
        rles = encode_mask_results(prediction.masks.numpy())
        for found, rle in zip(objects, rles, strict=True):
            rle['counts'] = rle['counts'].decode()
            found['mask'] = rle
    return objects


def demo(args) -> int:
    """Write all pictures; the number of images that could not be read."""
    images = find_images(Path(args.input))
    out_dir = Path(args.out_dir)
    if out_dir.resolve() == images[0].parent.resolve():
        raise InputError(
            f'--out-dir: {out_dir} is the folder of the input, whose images '
            'the pictures would overwrite; choose another one'
        )
    config = apis.load_config(args.config)
    config.model.backbone.init_cfg = None
    init_default_scope(config.get('default_scope', 'mmdet'))
    with torch.device('meta'):
        apis.check_checkpoint(MODELS.build(config.model), args.checkpoint)
    model = init_detector(config, args.checkpoint, device=args.device)
    apis.keep_roi_align_contiguous(model)
    visualizer = VISUALIZERS.build({**config.visualizer, 'vis_backends': None})
    visualizer.dataset_meta = model.dataset_meta
    out_dir.mkdir(parents=True, exist_ok=True)
    unreadable = 0
    for path in images:
        image = mmcv.imread(str(path))
        if image is None:
            print(f'{path}: cannot be decoded, left out', file=sys.stderr)
            unreadable += 1
            continue
        sample = inference_detector(model, image)
        objects = objects_of(
            sample.pred_instances,
            model.dataset_meta['classes'],
            args.score_thr,
        )
        picture = out_dir / path.name
        visualizer.add_datasample(
            path.stem,
            mmcv.bgr2rgb(image),
            sample,
            draw_gt=False,
            pred_score_thr=args.score_thr,
            out_file=str(picture),
        )
        result = dict(image=path.name, objects=objects)
        (out_dir / f'{path.name}.json').write_text(
            json.dumps(result, indent=1)
        )
        names = ', '.join(found['class'] for found in objects) or 'nothing'
        print(f'{path}: {names} -> {picture}')
    return unreadable


def main():
    args = parse_args()
    try:
        unreadable = demo(args)
    except InputError as error:
        sys.exit(f'image_demo.py: {error}')
    if unreadable:
        sys.exit(f'image_demo.py: {unreadable} images could not be read')


if __name__ == '__main__':
    main()
