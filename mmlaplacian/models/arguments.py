"""Checks of constructor arguments whose errors list the choices."""

import functools
import inspect
from collections.abc import Callable, Iterable


def check_choice(name: str, value, choices: Iterable[str]) -> None:
    """Raise ValueError unless ``value`` is one of ``choices``."""
    if value not in choices:
        raise ValueError(
            f'{name} must be one of {sorted(choices)}, got {value!r}'
        )


def list_choices(base: type | None = None) -> Callable:
    """Decorate a constructor so that unknown arguments list the known ones.

    The class keeps its true signature for ``inspect`` and ``help``.

    Args:
        base: Class whose constructor takes the ``**arguments`` of the
            decorated one. Default: None, for a constructor without them.
    """

    def decorate(init: Callable) -> Callable:
        parameters = dict(inspect.signature(init).parameters)
        if base is not None:
            keywords = inspect.Parameter.VAR_KEYWORD
            inherited = inspect.signature(base.__init__).parameters
            parameters = {
                name: parameter
                for name, parameter in parameters.items()
                if parameter.kind is not keywords
            } | {
                name: parameter
                for name, parameter in inherited.items()
                if name not in parameters
            }

        @functools.wraps(init)
        def checked(self, *args, **kwargs):
            unknown = sorted(kwargs.keys() - parameters.keys())
            if unknown:
                choices = sorted(parameters.keys() - {'self'})
                raise TypeError(
                    f'{type(self).__name__} does not know the arguments '
                    f'{unknown}; choose from {choices}'
                )
            init(self, *args, **kwargs)

        checked.__signature__ = inspect.Signature(list(parameters.values()))
        return checked

    return decorate
