"""LaplacianFormer for detection and segmentation.

Importing this package needs torch only. Where mmengine can be imported, the
backbone and the training hook are registered in its root registries, so that
``custom_imports=dict(imports=['mmlaplacian'])`` makes the bare names
``LaplacianFormer`` and ``AttentionDiagnosticsHook`` known to mmdet, mmseg and
mmpretrain.
"""

from importlib.util import find_spec

from .version import __version__

if find_spec('mmengine') is not None:
    from . import hooks, models  # noqa: F401

__all__ = ['__version__']
