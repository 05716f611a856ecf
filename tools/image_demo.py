"""Draw the predictions of a model on images.

For each image NAME, OUT_DIR/NAME is the drawing and OUT_DIR/NAME.json holds
the predictions. Detectors give class, score, box (x1, y1, x2, y2 in pixels)
and mask (COCO RLE) of each object. Segmentation gives the share of pixels of
each class, and OUT_DIR/NAME.labels.png with the class number of each pixel.
"""

import argparse
import json
import sys
from pathlib import Path

from mmlaplacian.check_env import check_gpu_ops, check_or_exit

check_or_exit('image_demo.py')

import cv2
import mmcv
import numpy as np
from mmengine.device import get_device
from mmengine.registry import DATASETS, MODELS, VISUALIZERS

from mmlaplacian.checks.weights import check_checkpoint, check_pretrained
from mmlaplacian.datasets import IMAGE_SUFFIXES
from mmlaplacian.errors import InputError
from mmlaplacian.launch.config import load_config, scope_of, use_scope
from mmlaplacian.launch.layout import keep_roi_align_contiguous
from mmlaplacian.launch.processes import plain_batch_norm


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('input', help='image file, or folder of images')
    parser.add_argument('config', help='config file')
    parser.add_argument('checkpoint', help='checkpoint file')
    parser.add_argument(
        '--out-dir',
        default='outputs',
        help='target folder; default: %(default)s',
    )
    parser.add_argument(
        '--score-thr',
        type=float,
        default=0.3,
        help='smallest score of an object; default: %(default)s',
    )
    parser.add_argument(
        '--device',
        default=get_device(),
        help='device to run on; default: %(default)s',
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
        p for p in sorted(path.iterdir()) if p.suffix.lower() in IMAGE_SUFFIXES
    ]
    if not images:
        raise InputError(
            f'input: {path} holds no image ({", ".join(IMAGE_SUFFIXES)})'
        )
    return images


def describe_objects(sample, classes, score_thr: float) -> dict:
    """Objects above a score as plain values for JSON."""
    from mmdet.structures.mask import encode_mask_results

    prediction = sample.pred_instances
    prediction = prediction[prediction.scores >= score_thr].cpu()
    objects = []
    for label, score, box in zip(
        prediction.labels.tolist(),
        prediction.scores.tolist(),
        prediction.bboxes.tolist(),
        strict=True,
    ):
        found = dict(label=label, score=round(score, 4))
        found['class'] = classes[label]
        found['box'] = [round(edge, 2) for edge in box]
        objects.append(found)
    if 'masks' in prediction:
        rles = encode_mask_results(prediction.masks.numpy())
        for found, rle in zip(objects, rles, strict=True):
            rle['counts'] = rle['counts'].decode()
            found['mask'] = rle
    return dict(objects=objects)


def describe_labels(sample, classes, path: Path) -> dict:
    """Write the label map and return the share of each class."""
    labels = sample.pred_sem_seg.data[0].cpu().numpy().astype(np.uint8)
    mmcv.imwrite(labels, str(path))
    counts = np.bincount(labels.ravel(), minlength=len(classes))
    return dict(
        labels=path.name,
        shares={
            name: round(int(count) / labels.size, 4)
            for name, count in zip(classes, counts, strict=True)
            if count
        },
    )


def load_model(args):
    """Build the model with its weights; returns it and its inferencer."""
    config = load_config(args.config)
    if scope_of(config) == 'mmpretrain':
        raise InputError(
            f'config: {args.config} is a classifier, expected a detector or a '
            'segmentor; tools/test.py --show-dir draws classes on images'
        )
    check_pretrained(config, from_scratch=True)
    plain_batch_norm(config)
    scope = use_scope(config)
    check_checkpoint(MODELS.build(config.model), args.checkpoint)
    if scope == 'mmdet':
        if args.device != 'cpu':
            check_gpu_ops()
        from mmdet.apis import inference_detector, init_detector

        model = init_detector(config, args.checkpoint, device=args.device)
        keep_roi_align_contiguous(model)
        return model, inference_detector
    from mmseg.apis import inference_model, init_model

    return init_model(config, args.checkpoint, args.device), inference_model


def read(path: Path) -> np.ndarray | None:
    """Read an image; None if it cannot be decoded."""
    try:
        return mmcv.imread(str(path))
    except (cv2.error, OSError):
        return None


def use_own_classes(model) -> list[str]:
    """Set the classes of the config.

    mmdet and mmseg assume COCO's or Cityscapes' classes if a checkpoint has
    none.
    """
    dataset = {**model.cfg.test_dataloader.dataset, 'lazy_init': True}
    model.dataset_meta.update(DATASETS.build(dataset).metainfo)
    return model.dataset_meta['classes']


def demo(args) -> int:
    """Draw all images; returns how many could not be read."""
    images = find_images(Path(args.input))
    out_dir = Path(args.out_dir)
    if out_dir.resolve() == images[0].parent.resolve():
        raise InputError(
            f'--out-dir: {out_dir} is the folder of the input, whose images '
            'the pictures would overwrite; choose another one'
        )
    model, infer = load_model(args)
    visualizer = VISUALIZERS.build(
        {**model.cfg.visualizer, 'vis_backends': None}
    )
    classes = use_own_classes(model)
    visualizer.dataset_meta = model.dataset_meta
    out_dir.mkdir(parents=True, exist_ok=True)
    unreadable = 0
    for path in images:
        image = read(path)
        if image is None:
            print(f'{path}: cannot be decoded, skipped', file=sys.stderr)
            unreadable += 1
            continue
        sample = infer(model, image)
        options = {}
        if 'pred_instances' in sample:
            found = describe_objects(sample, classes, args.score_thr)
            options['pred_score_thr'] = args.score_thr
            names = [each['class'] for each in found['objects']]
        else:
            labels = out_dir / f'{path.name}.labels.png'
            found = describe_labels(sample, classes, labels)
            names = list(found['shares'])
        known = path.suffix.lower() in IMAGE_SUFFIXES
        picture = out_dir / (path.name if known else f'{path.name}.png')
        visualizer.add_datasample(
            path.stem,
            mmcv.bgr2rgb(image),
            sample,
            draw_gt=False,
            out_file=str(picture),
            **options,
        )
        (out_dir / f'{path.name}.json').write_text(
            json.dumps(dict(image=path.name, **found), indent=1)
        )
        print(f'{path}: {", ".join(names) or "nothing"} -> {picture}')
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
