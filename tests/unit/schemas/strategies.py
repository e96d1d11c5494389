"""Values of every Struct of the schemas, made from the types: a new member is tested without being asked for."""

import json
from typing import Any

import msgspec
from hypothesis import strategies as st
from msgspec import UNSET, Raw, inspect

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
"""Whatever a record may hold as text: U+0000 too, lone surrogates never."""
INTEGERS = st.integers(-(2**63), 2**63 - 1)

_SPACES = st.sampled_from(["", "", "", " ", "\n\t", " \r\n"])
_NUMBERS = st.from_regex(r"-?(0|[1-9][0-9]{0,24})(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,2})?", fullmatch=True)
_STRINGS = st.builds(lambda text, is_ascii: json.dumps(text, ensure_ascii=is_ascii), TEXTS, st.booleans())


def _containers(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    members = st.builds(lambda name, gap, value: f"{name}:{gap}{value}", _STRINGS, _SPACES, values)
    return st.one_of(
        st.builds(lambda gap, items: f"[{gap}{','.join(items)}{gap}]", _SPACES, st.lists(values, max_size=4)),
        st.builds(lambda gap, items: f"{{{gap}{(gap + ',').join(items)}}}", _SPACES, st.lists(members, max_size=4)),
    )


JSON_TEXTS = st.recursive(
    st.one_of(st.sampled_from(["null", "true", "false"]), _NUMBERS, _STRINGS), _containers, max_leaves=8
)
"""JSON as clients spell it: space between tokens, equal member names, numbers of any length."""


def values_of(struct: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    """Return a strategy for instances of a Struct in which every member takes every form that its type allows."""
    return _values(inspect.type_info(struct))


def _values(kind: inspect.Type) -> st.SearchStrategy[Any]:
    match kind:
        case inspect.StructType(cls=cls, fields=fields):
            return st.builds(cls, **{field.name: _member(field) for field in fields})
        case inspect.UnionType(types=types):
            return st.one_of(*(_values(each) for each in types))
        case inspect.LiteralType(values=values):
            return st.sampled_from(values)
        case inspect.VarTupleType(item_type=item):
            return st.lists(_values(item), max_size=3).map(tuple)
        case inspect.TupleType(item_types=items):
            return st.tuples(*(_values(item) for item in items))
        case inspect.DictType(key_type=key, value_type=value):
            return st.dictionaries(_values(key), _values(value), max_size=2)
        case inspect.RawType():
            return JSON_TEXTS.map(lambda text: Raw(text.encode()))
        case _:
            return _PLAIN[type(kind)]


def _member(field: inspect.Field) -> st.SearchStrategy[Any]:
    values = _values(field.type)
    return values | st.just(UNSET) if field.default is UNSET else values


_PLAIN: dict[type[inspect.Type], st.SearchStrategy[Any]] = {
    inspect.StrType: TEXTS,
    inspect.IntType: INTEGERS,
    inspect.BoolType: st.booleans(),
    inspect.BytesType: st.binary(max_size=40),
    inspect.NoneType: st.none(),
}
