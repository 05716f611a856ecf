"""Hooks for mmengine's runner, registered in its root registry."""

from mmengine.registry import HOOKS


@HOOKS.register_module(name='AttentionDiagnosticsHook')
def build_attention_diagnostics(**arguments):
    """Build an ``AttentionDiagnosticsHook``; its arguments are passed on.

    A function, since the class needs ``mmengine.hooks``, which loads OpenCV:
    ``import mmlaplacian`` works without it.
    """
    from .attention_diagnostics import AttentionDiagnosticsHook

    return AttentionDiagnosticsHook(**arguments)
