"""Every cell of the truth table, for each of the three kinds of rule."""

import pytest

from tests.unit.policy.bundles import holds

ALLOW, BOTH, OTHERS, NEITHER = "allow rules", "every rule", "deny and require_approval rules", "no rule"

# predicate on x; args; which rules match
CELLS = [
    # equals, one_of: present match, present no match, null, missing, wrong type
    ({"equals": "a"}, '{"x":"a"}', BOTH),
    ({"equals": "a"}, '{"x":"b"}', NEITHER),
    ({"equals": "a"}, '{"x":null}', NEITHER),
    ({"equals": "a"}, "{}", NEITHER),
    ({"equals": "1"}, '{"x":1}', NEITHER),
    ({"equals": 1}, '{"x":"1"}', NEITHER),
    ({"equals": 1}, '{"x":true}', NEITHER),
    ({"equals": True}, '{"x":1}', NEITHER),
    ({"equals": None}, '{"x":null}', BOTH),
    ({"equals": None}, '{"x":0}', NEITHER),
    ({"equals": None}, "{}", NEITHER),
    ({"one_of": ["a", 2]}, '{"x":2.0}', BOTH),
    ({"one_of": ["a", 2]}, '{"x":"b"}', NEITHER),
    ({"one_of": ["a", 2]}, '{"x":null}', NEITHER),
    ({"one_of": ["a", 2]}, "{}", NEITHER),
    ({"one_of": ["a", 2]}, '{"x":["a"]}', NEITHER),
    ({"one_of": ["a", None]}, '{"x":null}', BOTH),
    ({"one_of": ["a", [1]]}, '{"x":[1.0]}', BOTH),
    # not_equals, not_one_of
    ({"not_equals": "a"}, '{"x":"b"}', BOTH),
    ({"not_equals": "a"}, '{"x":"a"}', NEITHER),
    ({"not_equals": "a"}, '{"x":null}', OTHERS),
    ({"not_equals": "a"}, "{}", OTHERS),
    ({"not_equals": "1"}, '{"x":1}', OTHERS),
    ({"not_equals": None}, '{"x":null}', NEITHER),
    ({"not_equals": None}, '{"x":"a"}', OTHERS),
    ({"not_equals": None}, "{}", OTHERS),
    ({"not_equals": [1]}, '{"x":[2]}', BOTH),
    ({"not_equals": {"a": 1}}, '{"x":{"a":1.0}}', NEITHER),
    ({"not_one_of": ["a", "b"]}, '{"x":"c"}', BOTH),
    ({"not_one_of": ["a", "b"]}, '{"x":"b"}', NEITHER),
    ({"not_one_of": ["a", "b"]}, '{"x":null}', OTHERS),
    ({"not_one_of": ["a", "b"]}, "{}", OTHERS),
    ({"not_one_of": ["a", "b"]}, '{"x":["a"]}', OTHERS),
    ({"not_one_of": ["a", None]}, '{"x":null}', NEITHER),
    ({"not_one_of": ["a", 1]}, '{"x":2}', BOTH),
    # contains, regex
    ({"contains": "b"}, '{"x":"abc"}', BOTH),
    ({"contains": "b"}, '{"x":"ac"}', NEITHER),
    ({"contains": "ul"}, '{"x":null}', BOTH),
    ({"contains": "x"}, '{"x":null}', NEITHER),
    ({"contains": ""}, "{}", NEITHER),
    ({"contains": '{"a":[1.50,"\\u003c"]}'}, '{"x":{"a": [1.50, "<"]}}', BOTH),
    ({"contains": "1.5"}, '{"x":15}', NEITHER),
    ({"regex": "^b+$"}, '{"x":"bb"}', BOTH),
    ({"regex": "^b+$"}, '{"x":"ab"}', NEITHER),
    ({"regex": "^null$"}, '{"x":null}', BOTH),
    ({"regex": "x"}, '{"x":null}', NEITHER),
    ({"regex": ""}, "{}", NEITHER),
    ({"regex": r'^\["a",1e2\]$'}, '{"x":[ "a", 1e2 ]}', BOTH),
    # exists
    ({"exists": True}, '{"x":1}', BOTH),
    ({"exists": True}, '{"x":null}', BOTH),
    ({"exists": True}, '{"x":[]}', BOTH),
    ({"exists": True}, "{}", NEITHER),
    ({"exists": False}, '{"x":1}', NEITHER),
    ({"exists": False}, '{"x":null}', NEITHER),
    ({"exists": False}, '{"x":[]}', NEITHER),
    ({"exists": False}, "{}", BOTH),
]
ORDER_CELLS = [
    ({operator: 5}, f'{{"x":{value}}}', BOTH if matches else NEITHER)
    for operator, wanted in (("gt", "001"), ("gte", "011"), ("lt", "100"), ("lte", "110"))
    for value, matches in zip(("4", "5.0", "5.01"), (bit == "1" for bit in wanted), strict=True)
] + [
    ({operator: 5}, args, matching)
    for operator in ("gt", "gte", "lt", "lte")
    for args, matching in (
        ('{"x":null}', OTHERS),
        ("{}", NEITHER),
        ('{"x":"9"}', OTHERS),
        ('{"x":true}', OTHERS),
        ('{"x":[9]}', OTHERS),
        ('{"x":{}}', OTHERS),
    )
]


@pytest.mark.parametrize(("predicate", "args", "matching"), CELLS + ORDER_CELLS)
def test_a_cell_of_the_truth_table(predicate: dict[str, object], args: str, matching: str):
    found = {decision: holds(predicate, args, decision=decision) for decision in ("allow", "deny", "require_approval")}
    assert found == {
        "allow": matching in (ALLOW, BOTH),
        "deny": matching in (OTHERS, BOTH),
        "require_approval": matching in (OTHERS, BOTH),
    }


def test_all_operators_at_a_path_must_hold():
    both = {"gte": 1, "lte": 3}
    assert [holds(both, f'{{"x":{value}}}') for value in (0, 1, 3, 4)] == [False, True, True, False]
