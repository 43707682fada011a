"""Settings that come from files: strict models, all mistakes of a file reported at once."""

import difflib
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

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
        lines = [_describe(model, dict(item), where) for item in error.errors()]
        raise UserError("\n".join(lines)) from None


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
    if not key:
        return f"{where}: {rule}"
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
