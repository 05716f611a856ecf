"""LaplacianFormer for detection and segmentation.

Importing this package needs torch only. Where mmengine can be imported, the
backbone is registered in its root registry, so that
``custom_imports=dict(imports=['mmlaplacian'])`` makes the bare name
``LaplacianFormer`` known to mmdet, mmseg and mmpretrain.
"""

from importlib.util import find_spec

from .version import __version__

if find_spec('mmengine') is not None:
    from . import models  # noqa: F401

__all__ = ['__version__']
