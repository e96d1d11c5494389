"""Frameworks whose calls become steps. Each adapter needs the package that it adapts, and none needs another's."""
