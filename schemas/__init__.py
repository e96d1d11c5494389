"""The words of the system: ids, entries, events, answers, records and HTTP bodies, with the only codecs.

Nothing here decides anything; it imports msgspec and the standard library alone.
"""
