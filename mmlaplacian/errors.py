"""The error that commands print without a traceback."""


class InputError(Exception):
    """What was expected, what came and what to do, in one message."""
