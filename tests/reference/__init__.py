"""The published reference client, unmodified and in five releases, against the kernel.

Nothing here imports the client: its agents and its `Client` run as processes inside a virtual environment per release.
"""
