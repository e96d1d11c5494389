"""Golden files: the bytes that others rely on, and logs that every later version has to fold as this one did.

They are added to and never edited: `python -m tests.golden.write` writes what is missing and refuses all else.
"""
