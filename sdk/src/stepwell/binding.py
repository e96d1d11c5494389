"""From JSON to what a function takes, and from what a function takes to JSON Schema.

Models are Pydantic's, dataclasses, msgspec's structs and typed dictionaries. Everything else is handed over as it came.
"""

import dataclasses
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal, cast

import msgspec

Shape = Literal["names", "model", "raw"]

_EMPTY = inspect.Parameter.empty
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Signature:
    """What a function takes, with its annotations resolved."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.name = getattr(function, "__name__", type(function).__name__)
        self.signature = inspect.signature(function)
        try:
            self.hints: dict[str, Any] = typing.get_type_hints(function)
        except (NameError, TypeError):
            # Names that exist for type checkers alone.
            self.hints = {}

    @property
    def parameters(self) -> list[inspect.Parameter]:
        return list(self.signature.parameters.values())

    def annotation(self, parameter: inspect.Parameter) -> Any:
        return self.hints.get(parameter.name, parameter.annotation)

    def arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call by name, defaults included. Raises TypeError as the call itself would."""
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return dict(bound.arguments)

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema of an object with a member for each parameter."""
        fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
        for parameter in self.parameters:
            if parameter.kind not in _NAMED:
                continue
            annotation = self.annotation(parameter)
            kind = Any if annotation is _EMPTY else annotation
            default = parameter.default
            fields.append((parameter.name, kind) if default is _EMPTY else (parameter.name, kind, _default(default)))
        return schema_of(msgspec.defstruct(self.name, fields, kw_only=True))


class Input:
    """How the input of an execution reaches a handler: by names, as one model, or as it is."""

    def __init__(self, handler: Callable[..., Any]) -> None:
        self._signature = Signature(handler)
        self.shape = self._shape()

    def bind(self, value: Any) -> dict[str, Any]:
        """Return the handler's arguments. Raises ValueError saying what does not fit."""
        parameters = self._signature.parameters
        if self.shape == "raw":
            return {parameters[0].name: value}
        if self.shape == "model":
            return {parameters[0].name: converted(value, self._signature.annotation(parameters[0]))}
        members = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
        named = [parameter for parameter in parameters if parameter.kind in _NAMED]
        missing = [each.name for each in named if each.default is _EMPTY and each.name not in members]
        if missing:
            raise ValueError(f"missing required input fields: {', '.join(missing)}")
        return {
            each.name: converted(members[each.name], self._signature.annotation(each))
            for each in named
            if each.name in members
        }

    def schema(self) -> dict[str, Any] | None:
        """Return the JSON Schema of the input, None where everything is taken."""
        if self.shape == "raw":
            return None
        try:
            if self.shape == "model":
                return schema_of(self._signature.annotation(self._signature.parameters[0]))
            return self._signature.schema()
        except TypeError:
            # An annotation that has no JSON Schema.
            return None

    def _shape(self) -> Shape:
        parameters = self._signature.parameters
        if len(parameters) == 1:
            annotation = self._signature.annotation(parameters[0])
            if is_model(annotation):
                return "model"
            if annotation in (_EMPTY, Any, dict) or typing.get_origin(annotation) is dict:
                return "raw"
        return "names"


def is_model(kind: Any) -> bool:
    """Whether values of a type are objects with known members."""
    if not isinstance(kind, type):
        return False
    known = cast("type[Any]", kind)
    return (
        _is_pydantic(known)
        or issubclass(known, msgspec.Struct)
        or dataclasses.is_dataclass(known)
        or typing.is_typeddict(known)
    )


def converted(value: Any, kind: Any) -> Any:
    """Return the value as the model that a type is, also inside of lists and unions of models.

    Other types are no promise about what was sent: their values are handed over as they are. Raises ValueError.
    """
    if not _has_model(kind):
        return value
    try:
        return msgspec.convert(value, kind, dec_hook=_pydantic_of)
    except msgspec.ValidationError as error:
        raise ValueError(f"input validation failed: {error}") from error


def schema_of(kind: Any) -> dict[str, Any]:
    """Return the JSON Schema of a type. Raises TypeError where it has none."""
    if _is_pydantic(kind):
        return kind.model_json_schema()
    schema = msgspec.json.schema(kind, schema_hook=_pydantic_schema)
    return _inlined(schema)


def _has_model(kind: Any) -> bool:
    return is_model(kind) or any(_has_model(part) for part in typing.get_args(kind))


def _is_pydantic(kind: Any) -> bool:
    return isinstance(kind, type) and hasattr(kind, "model_validate") and hasattr(kind, "model_json_schema")


def _pydantic_of(kind: type, value: Any) -> Any:
    if not _is_pydantic(kind):
        raise NotImplementedError
    try:
        return cast("Any", kind).model_validate(value)
    except ValueError as error:
        raise ValueError(str(error)) from error


def _pydantic_schema(kind: type) -> dict[str, Any]:
    if _is_pydantic(kind):
        return cast("Any", kind).model_json_schema()
    raise NotImplementedError


def _inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema with the outermost reference resolved: model providers want an object at the top."""
    reference = schema.get("$ref", "")
    definitions = schema.get("$defs", {})
    name = reference.removeprefix("#/$defs/")
    if name not in definitions:
        return schema
    others = {key: value for key, value in definitions.items() if key != name}
    top = dict(definitions[name])
    return top | {"$defs": others} if others else top


def _default(value: Any) -> Any:
    """Return a default as a struct takes it: mutable ones by a factory."""
    is_mutable = isinstance(value, list | dict | set)
    return msgspec.field(default_factory=lambda: value) if is_mutable else value
