"""Faults on purpose: real processes are killed, stalled, cut off and lied to while agents work, and nothing is lost."""
