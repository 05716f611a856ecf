"""Writer of COCO files and semantic label maps."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import cv2
import numpy as np
from pycocotools import mask as mask_api

from .output import claim_folders

#: COCO's limits of mask area between small, medium and large.
SMALL, MEDIUM = 32**2, 96**2


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


def _describes(path: Path, description: str) -> bool:
    """True if an earlier call wrote the annotation file."""
    try:
        content = json.loads(path.read_text())
        return content['info']['description'] == description
    except (OSError, ValueError, KeyError, TypeError):
        return False


def write_split(
    out: str | Path,
    split: str,
    scenes: Iterable[tuple[np.ndarray, list[tuple[int, np.ndarray]]]],
    classes: Sequence[str],
    description: str,
) -> dict[str, int]:
    """Write one split of a dataset.

    ``out/SPLIT/000000.png``, ``out/semantic/SPLIT/000000.png`` (0 is
    background, label i is i + 1) and, last of all,
    ``out/annotations/SPLIT.json``. Numbered files of an earlier call are
    removed.

    Args:
        out: Target folder; created if missing.
        split: Name of the split.
        scenes: BGR or grey pictures, uint8 (H, W, 3) or (H, W), each with
            (label, mask) of its objects; masks are disjoint, bool (H, W).
        classes: Names, by label.
        description: Description in the annotation file.

    Returns:
        Numbers of ``scenes`` and of ``small``, ``medium`` and ``large``
        objects (COCO's buckets of mask area).

    Raises:
        FileExistsError: ``out`` holds numbered pictures from another source.
    """
    out = Path(out)
    pictures, maps = out / split, out / 'semantic' / split
    target = out / 'annotations' / f'{split}.json'
    claim_folders(out, (pictures, maps), ours=_describes(target, description))
    images, annotations = [], []
    for number, (scene, found) in enumerate(scenes):
        height, width = scene.shape[:2]
        semantic = np.zeros((height, width), np.uint8)
        for label, mask in found:
            semantic[mask] = label + 1
            annotation = _annotation(label, mask)
            annotation.update(id=len(annotations) + 1, image_id=number)
            annotations.append(annotation)
        name = f'{number:06d}'
        images.append(
            dict(
                id=number, file_name=f'{name}.png', height=height, width=width
            )
        )
        cv2.imwrite(str(pictures / f'{name}.png'), scene)
        cv2.imwrite(str(maps / f'{name}.png'), semantic)
    coco = dict(
        info=dict(description=description),
        images=images,
        annotations=annotations,
        categories=[dict(id=i + 1, name=n) for i, n in enumerate(classes)],
    )
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(coco))
    areas = np.array([a['area'] for a in annotations])
    return dict(
        scenes=len(images),
        small=int((areas < SMALL).sum()),
        medium=int(((areas >= SMALL) & (areas < MEDIUM)).sum()),
        large=int((areas >= MEDIUM).sum()),
    )
