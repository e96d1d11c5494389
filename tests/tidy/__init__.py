"""The rules of the code that a machine can check. Each checker is itself shown to fail, in test_checkers.py."""
