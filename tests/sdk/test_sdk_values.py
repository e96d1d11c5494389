"""What JSON can carry, what it cannot and where; models in and out; schemas of tools and inputs."""

import dataclasses
import math
from datetime import UTC, datetime
from typing import Any, TypedDict

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell import tool, tool_schema, wrap_tool
from stepwell.binding import Input
from stepwell.values import decode, encode

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@dataclasses.dataclass
class Place:
    city: str
    country: str = "CH"


class Trip(msgspec.Struct):
    places: list[Place]
    days: int = 1


class Person(pydantic.BaseModel):
    name: str
    age: int = pydantic.Field(ge=0)


class Options(TypedDict, total=False):
    limit: int


@given(json_values)
def test_a_value_comes_back_as_it_was(value: Any) -> None:
    assert decode(encode(value, what="args")) == value


def test_half_of_a_surrogate_pair_comes_back_too() -> None:
    assert decode(encode({"a": "\ud800"}, what="args")) == {"a": "\ud800"}


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (datetime(2026, 1, 1, tzinfo=UTC), "args"),
        ({"at": datetime(2026, 1, 1, tzinfo=UTC)}, "args.at"),
        ({"items": [1, {"price": math.nan}]}, "args.items[1].price"),
        ([b"bytes"], "args[0]"),
        ({"names": {"a", "b"}}, "args.names"),
        ({"f": len}, "args.f"),
        (Place, "args"),
    ],
)
def test_a8_what_json_cannot_carry_is_refused_by_its_place(value: Any, place: str) -> None:
    with pytest.raises(TypeError) as refused:
        encode(value, what="args")
    assert str(refused.value).startswith(f"{place}: ")


def test_a_value_that_holds_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(TypeError):
        encode(endless, what="args")


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (Place("Bern"), {"city": "Bern", "country": "CH"}),
        (Trip([Place("Bern")]), {"places": [{"city": "Bern", "country": "CH"}], "days": 1}),
        (Person(name="Ada", age=36), {"name": "Ada", "age": 36}),
        ((1, 2), [1, 2]),
    ],
)
def test_models_become_objects(model: Any, expected: Any) -> None:
    assert decode(encode({"x": model}, what="args")) == {"x": expected}


# ---------------------------------------------------------------- inputs


def by_names(topic: str, limit: int = 3, *, deep: bool = False) -> None: ...
def one_dataclass(place: Place) -> None: ...
def one_struct(trip: Trip) -> None: ...
def one_pydantic(person: Person) -> None: ...
def one_typed_dict(options: Options) -> None: ...
def raw(anything) -> None: ...  # type: ignore[no-untyped-def]  # what has no annotation takes everything
def raw_dict(anything: dict[str, Any]) -> None: ...
def models_by_name(people: list[Person], where: Place | None = None) -> None: ...


@pytest.mark.parametrize(
    ("handler", "given", "bound"),
    [
        (by_names, {"topic": "cats", "other": 1}, {"topic": "cats"}),
        (by_names, {"topic": "cats", "deep": True}, {"topic": "cats", "deep": True}),
        (one_dataclass, {"city": "Bern"}, {"place": Place("Bern")}),
        (one_struct, {"places": [{"city": "Bern"}], "days": 2}, {"trip": Trip([Place("Bern")], 2)}),
        (one_pydantic, {"name": "Ada", "age": 36}, {"person": Person(name="Ada", age=36)}),
        (one_typed_dict, {"limit": 3}, {"options": {"limit": 3}}),
        (raw, [1, None], {"anything": [1, None]}),
        (raw, None, {"anything": None}),
        (raw_dict, {"a": 1}, {"anything": {"a": 1}}),
        (models_by_name, {"people": [{"name": "Ada", "age": 1}]}, {"people": [Person(name="Ada", age=1)]}),
        (lambda: None, {"whatever": 1}, {}),
    ],
)
def test_a6_an_input_reaches_the_handler_by_names_as_one_model_or_raw(handler: Any, given: Any, bound: Any) -> None:
    assert Input(handler).bind(given) == bound


@pytest.mark.parametrize(
    ("handler", "given"),
    [
        (by_names, {"limit": 3}),
        (by_names, None),
        (by_names, [1]),
        (one_dataclass, {"country": "CH"}),
        (one_struct, {"places": "Bern"}),
        (one_pydantic, {"name": "Ada", "age": -1}),
        (one_pydantic, None),
        (models_by_name, {"people": [{"name": "Ada"}]}),
    ],
)
def test_a6_what_does_not_fit_is_refused(handler: Any, given: Any) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Input(handler).bind(given)


# ---------------------------------------------------------------- schemas


def test_a_tool_has_a_schema_for_model_providers() -> None:
    @tool("places.find")
    async def find(query: str, near: Place, people: list[Person], limit: int = 3) -> list[Place]:
        """Find places."""
        raise NotImplementedError

    schema = tool_schema(find)

    assert (schema["name"], schema["description"]) == ("places.find", "Find places.")
    parameters = schema["parameters"]
    assert parameters["type"] == "object"
    assert parameters["required"] == ["query", "near", "people"]
    assert parameters["properties"]["query"] == {"type": "string"}
    assert parameters["properties"]["limit"] == {"type": "integer", "default": 3}
    assert "Place" in parameters["properties"]["near"]["$ref"]


def test_a_wrapped_tool_has_the_schema_it_was_given() -> None:
    given = {"type": "object", "properties": {"q": {"type": "string"}, "n": {"type": "integer"}}, "required": ["q"]}

    wrapped = wrap_tool("web.search", lambda args: args, description="Searches.", args_schema=given)

    assert tool_schema(wrapped) == {"name": "web.search", "description": "Searches.", "parameters": given}
    assert Input(one_pydantic).schema() == Person.model_json_schema()
    assert Input(raw).schema() is None


def test_generators_are_refused_clearly() -> None:
    with pytest.raises(TypeError, match="must not be a generator"):

        @tool
        def numbers() -> Any:
            yield 1

    with pytest.raises(TypeError, match="must not be a generator"):

        @tool
        async def more() -> Any:
            yield 1
