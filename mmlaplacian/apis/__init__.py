"""Functions that users call from Python."""

from .complexity import count

__all__ = ['count']
