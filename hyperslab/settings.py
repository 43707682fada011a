"""Settings that come from files: strict models, all mistakes of a file reported at once."""

import difflib
import itertools
import re
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, field_validator
from pydantic_core import ErrorDetails

from hyperslab.errors import UserError


class Settings(BaseModel):
    """Base of everything that is read from a file: frozen, and refusing keys that it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_value(cls, value: Any) -> Any:
        if isinstance(value, bool):
            raise ValueError("must not be true or false")  # which would count as 1 and 0
        return value


Model = TypeVar("Model", bound=Settings)


# An explicit tag on a value that does not suit it, or very deep nesting, ends in plain Python errors.
_YAML_ERRORS = (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, RecursionError)


_TYPE = re.compile(r"(int|float|str|list|dict|constrained-\w+)(\[.*\])?|\[key\]")
"""What stands after the key in the place of a mistake, where a value may be of several types, or is itself a key."""


class _Loader(yaml.SafeLoader):
    """Safe YAML that refuses a key given twice, of which the plain loader keeps the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for number, key in enumerate(keys):
            if key in keys[:number]:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} stands twice; keep one", node.value[number][0].start_mark
                )
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping that a YAML file holds.

    Raises
    ------
    UserError
        When the file cannot be read, is no YAML, or holds something other than a mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; check the path") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read as text: {error}") from None
    try:
        content = yaml.load(text, _Loader)
    except _YAML_ERRORS as error:
        mark = getattr(error, "problem_mark", None)
        place = f" line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error)
        raise UserError(f"{path}:{place} not valid YAML: {problem}") from None
    if not isinstance(content, dict):
        found = "nothing" if content is None else type(content).__name__
        raise UserError(f"{path}: found {found}, expected `key: value` lines")
    return content


def parse(model: type[Model], content: Mapping[str, Any], where: str) -> Model:
    """The settings that `content` describes.

    Parameters
    ----------
    where
        Name of the file, said before each mistake.

    Raises
    ------
    UserError
        One line for each mistake: the key, the value found, the rule, and the nearest known key.
    """
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise UserError("\n".join(_lines(model, error, where))) from None


def matching(pattern: str, rule: str) -> AfterValidator:
    """Refuse text that does not match, in words instead of a regular expression.

    Parameters
    ----------
    rule
        What is said of other text, such as `must be ...`.
    """

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(rule)
        return text

    return AfterValidator(check)


def override(content: dict[str, Any], assignments: list[str]) -> dict[str, Any]:
    """`content` with `key.sub=value` assignments laid over it; values are read as YAML."""
    result = {key: dict(value) if isinstance(value, dict) else value for key, value in content.items()}
    for assignment in assignments:
        dotted, equals, text = assignment.partition("=")
        keys = dotted.strip().split(".")
        if not equals or not all(keys):
            raise UserError(f"--set {assignment}: expected key=value, such as train.steps=500")
        try:
            value = yaml.load(text, _Loader)
        except _YAML_ERRORS:
            raise UserError(f"--set {assignment}: the value {text!r} is not valid YAML; quote it") from None
        target = result
        for key in keys[:-1]:
            below = target.get(key)
            target[key] = dict(below) if isinstance(below, dict) else {}
            target = target[key]
        target[keys[-1]] = value
    return result


def _lines(model: type[BaseModel], error: ValidationError, where: str) -> list[str]:
    """A line for each mistake; one line where a value is of none of several types."""
    lines: list[str] = []
    by_value: dict[tuple[str | int, ...], list[ErrorDetails]] = {}
    for item in error.errors():
        location = tuple(itertools.takewhile(lambda part: not _TYPE.fullmatch(str(part)), item["loc"]))
        by_value.setdefault(location if location != item["loc"] else (*location, ""), []).append(item)
    for items in by_value.values():
        # A mistake inside a value tells more than that it is of none of the types.
        deepest = max(len(item["loc"]) for item in items)
        first, *others = [item for item in items if len(item["loc"]) == deepest]
        plain = tuple(part for part in first["loc"] if not _TYPE.fullmatch(str(part)))
        line = _describe(model, {**first, "loc": plain}, where)
        lines.append(", or ".join([line, *(other["msg"].removeprefix("Input should be ") for other in others)]))
    return lines


def _describe(model: type[BaseModel], error: dict[str, Any], where: str) -> str:
    location = [part for part in error["loc"] if isinstance(part, str | int)]
    key = ".".join(str(part) for part in location)
    kind, found = error["type"], error["input"]
    if kind == "extra_forbidden":
        known = _known_keys(model, location[:-1])
        near = difflib.get_close_matches(str(location[-1]), known, n=1, cutoff=0.5)
        advice = f"did you mean `{near[0]}`?" if near else f"known keys: {', '.join(known)}"
        return f"{where}: {key}: unknown key, found {found!r}; {advice}"
    if kind == "missing":
        return f"{where}: {key}: missing; this key is required"
    if kind in ("model_type", "model_attributes_type"):
        return f"{where}: {key}: found {found!r}; expected `key: value` lines below it"
    rule = error["msg"].removeprefix("Value error, ")
    of_several_keys = kind == "value_error" and isinstance(found, dict)
    if not key or (of_several_keys and re.match(r"[\w.]+: ", rule)):  # the rule tells the key
        return f"{where}: {rule}"
    if of_several_keys:
        return f"{where}: {key}: {rule}"
    return f"{where}: {key}: found {found!r}; {rule[0].lower()}{rule[1:]}"


def _known_keys(model: type[BaseModel], location: list[str | int]) -> list[str]:
    """Names of the keys that are allowed at a place inside `model`."""
    current = model
    for part in location:
        field = current.model_fields.get(str(part))
        inner = _model_of(field.annotation) if field else None
        if inner is None:
            continue
        current = inner
    return list(current.model_fields)


def _model_of(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if typing.get_origin(annotation) in (typing.Union, types.UnionType, list, tuple, dict):
        for argument in typing.get_args(annotation):
            if found := _model_of(argument):
                return found
    return None
