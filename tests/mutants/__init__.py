"""The code broken on purpose, one way at a time: every break must make a named test fail. `python -m tests.mutants`."""
