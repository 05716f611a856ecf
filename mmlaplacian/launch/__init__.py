"""The start and the end of a run: config, devices and processes."""
