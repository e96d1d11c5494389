"""The bounds of the policy language, so that no bundle makes loading or a verdict slow, and no entry large."""

BUNDLE_BYTES_MAX = 256 * 1024
NESTING_MAX = 64
"""Mappings and lists open at once in a bundle. The parser's own time grows with the square of it."""
NODES_MAX = 50_000
"""Scalars, mappings and lists of a bundle, keys included."""
RULES_MAX = 1_000
PREDICATES_MAX = 5_000
NAME_CHARS_MAX = 256
"""Characters of a rule id, an agent id or an approver."""
TEXT_CHARS_MAX = 4_096
"""Characters of a reason or a message: both travel in the entries of the log."""
APPROVERS_MAX = 64
PATH_CHARS_MAX = 1_024
NUMBER_CHARS_MAX = 1_024
COUNT_MAX = 2**53
"""Upper end of `priority`, `max_calls` and `max_total_tokens`: exact in every reader of JSON."""
DURATION_SECONDS_MAX = 366 * 24 * 3600

GLOBS_MAX = 2_000
GLOB_CHARS_MAX = 2_048
"""A target of 1024 bytes can be spelled with every character escaped."""
GLOB_WILD_CHARS_MAX = 8_192
"""All the characters of a bundle that stand between `?` and classes, where a search costs a step for each."""

REGEXES_MAX = 256
REGEX_CHARS_MAX = 4_096
REGEX_MEMORY_BYTES_MAX = 512 * 1024
"""Of one compiled regex with all that it remembers of earlier subjects."""
REGEX_PROGRAM_MAX = 2_000
"""Instructions. RE2's time is at worst instructions times bytes, some 4 ns each."""
REGEX_SUBJECT_BYTES_MAX = 1024 * 1024

WORK_MAX = 2**31
"""Steps of one verdict: regex instructions times bytes of their subjects, and bytes that are written or searched.

One regex on one subject at their limits fits. What does not fit is undetermined, as a subject above the limit is.
"""
