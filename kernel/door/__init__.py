"""The HTTP front door: it checks a request, appends one entry, and answers what the fold decided.

Nothing that depends on order is decided here. Status codes exist in this package alone.
"""
