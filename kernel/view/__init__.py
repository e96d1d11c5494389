"""The view: what the log says at the watermark, for projectors, dispatchers and doors. Redis and memory adapters.

It can be lost or go backwards at any time; nothing here is the record of anything.
"""
