"""Bookkeeping of experiments: table, logs of runs, report and model zoo."""
