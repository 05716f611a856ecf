"""The attention layers (torch only) and the backbone (torch and mmengine)."""

from importlib.util import find_spec

from .attention import (
    ATTENTIONS,
    LaplacianAttention,
    dense_attention,
    nystrom_attention,
    whitened_product,
)

__all__ = [
    'ARCHS',
    'ATTENTIONS',
    'LaplacianAttention',
    'LaplacianFormer',
    'dense_attention',
    'nystrom_attention',
    'whitened_product',
]

if find_spec('mmengine') is not None:
    from .laplacianformer import ARCHS, LaplacianFormer
else:

    def __getattr__(name):
        if name in ('ARCHS', 'LaplacianFormer'):
            raise ImportError(
                f'{name} needs mmengine, which is not installed. Install it '
                'with: pip install "mmlaplacian[onedl]" (or, for the '
                'backbone alone: pip install onedl-mmengine)'
            )
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
