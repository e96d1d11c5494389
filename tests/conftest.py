"""Fixtures and settings of every test."""

import hypothesis

pytest_plugins = [
    "tests.support.leaks",
    "tests.support.seeds",
    "tests.support.servers",
    "tests.support.stack",
]

# Two cores are shared by servers and workers, so the time of a single example says nothing. A failure prints how to
# repeat it, which is worth more than a database that a clean clone does not have.
hypothesis.settings.register_profile("stepwell", deadline=None, database=None, print_blob=True)
hypothesis.settings.load_profile("stepwell")
