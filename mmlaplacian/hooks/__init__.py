"""Hooks that observe training, registered in mmengine's root registry."""

from mmengine.registry import HOOKS


@HOOKS.register_module(name='AttentionDiagnosticsHook')
def build_attention_diagnostics(**arguments):
    """Build an ``AttentionDiagnosticsHook`` from its arguments.

    The registry holds a function instead of the class because the class needs
    ``mmengine.hooks``, which loads OpenCV. ``import mmlaplacian`` works
    without OpenCV.
    """
    from .attention_diagnostics import AttentionDiagnosticsHook

    return AttentionDiagnosticsHook(**arguments)
