"""The exception for wrong input, which commands print without a traceback."""


class InputError(Exception):
    """Wrong input: what was expected, what came and what to do about it."""
