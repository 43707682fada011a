from datetime import date
from pathlib import Path
from typing import Annotated, Any, Self

import pytest
from pydantic import Field, field_validator, model_validator

from hyperslab.errors import UserError
from hyperslab.settings import Settings, matching, override, parse, read_yaml


class Wheel(Settings):
    radius: float = Field(default=0.3, gt=0)
    spokes: int = 32


class Bicycle(Settings):
    name: str
    front: Wheel = Wheel()
    spare: Wheel | None = None
    wheels: list[Wheel] = Field(default_factory=list)
    colour: str = "red"

    @field_validator("colour")
    @classmethod
    def _known_colour(cls, value: str) -> str:
        if value not in ("red", "blue"):
            raise ValueError("Must be red or blue")
        return value


def write(folder: Path, text: str) -> Path:
    path = folder / "bicycle.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_good_file_gives_its_settings(tmp_path: Path) -> None:
    content = read_yaml(write(tmp_path, "name: Rover\nfront:\n  spokes: 24\n"))
    assert parse(Bicycle, content, "bicycle.yaml") == Bicycle(name="Rover", front=Wheel(spokes=24))


def test_settings_cannot_be_changed_afterwards() -> None:
    bicycle = Bicycle(name="Rover")
    with pytest.raises(ValueError, match="frozen"):
        bicycle.name = "Other"  # type: ignore[misc]


def test_all_mistakes_are_reported_at_once_one_to_a_line() -> None:
    content = {"front": {"radius": -1, "spoke": 24}, "colour": "green", "wheels": [{"spokes": "many"}]}
    with pytest.raises(UserError) as caught:
        parse(Bicycle, content, "bicycle.yaml")
    lines = str(caught.value).splitlines()
    assert len(lines) == 5
    assert all(line.startswith("bicycle.yaml: ") for line in lines)
    found = {line.split(": ")[1] for line in lines}
    assert found == {"name", "front.radius", "front.spoke", "colour", "wheels.0.spokes"}


def test_a_missing_key_is_named_as_required() -> None:
    with pytest.raises(UserError, match=r"^bicycle.yaml: name: missing; this key is required$"):
        parse(Bicycle, {}, "bicycle.yaml")


def test_a_wrong_value_is_said_with_the_value_and_the_rule() -> None:
    with pytest.raises(UserError, match=r"front\.radius: found -1; input should be greater than 0"):
        parse(Bicycle, {"name": "a", "front": {"radius": -1}}, "bicycle.yaml")


def test_the_words_of_a_validator_reach_the_person() -> None:
    with pytest.raises(UserError, match=r"^bicycle.yaml: colour: found 'green'; must be red or blue$"):
        parse(Bicycle, {"name": "a", "colour": "green"}, "bicycle.yaml")


@pytest.mark.parametrize(
    ("content", "key", "near"),
    [
        ({"nane": "a"}, "nane", "name"),
        ({"front": {"radios": 1}}, "front.radios", "radius"),
        ({"spare": {"spoks": 1}}, "spare.spoks", "spokes"),
        ({"wheels": [{}, {"radus": 1}]}, "wheels.1.radus", "radius"),
    ],
)
def test_an_unknown_key_is_refused_and_the_nearest_of_its_level_is_named(
    content: dict[str, object], key: str, near: str
) -> None:
    with pytest.raises(UserError, match=rf"{key}: unknown key, found .*; did you mean `{near}`\?"):
        parse(Bicycle, content, "bicycle.yaml")


class Basket(Settings):
    size: int | list[Annotated[int, Field(ge=1)]] = 1
    owners: dict[Annotated[str, matching(r"[a-z]+", "must be lower-case letters")], int] = Field(default={})

    @model_validator(mode="after")
    def _owned_once(self) -> Self:
        if len(self.owners) > 1:
            raise ValueError(f"owners: found {len(self.owners)}; give one")
        return self


@pytest.mark.parametrize(
    ("content", "line"),
    [
        # Of several types: one line, that of an entry where the list itself is one.
        ({"size": "big"}, "basket.yaml: size: found 'big'; input should be a valid integer, unable to parse string as "
         "an integer, or a valid list"),
        ({"size": [2, 0]}, "basket.yaml: size.1: found 0; input should be greater than or equal to 1"),
        ({"owners": {"Ann": 1}}, "basket.yaml: owners.Ann: found 'Ann'; must be lower-case letters"),
        ({"owners": {"ann": 1, "bob": 2}}, "basket.yaml: owners: found 2; give one"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_about_the_key_that_a_person_wrote(content: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError) as error:
        parse(Basket, content, "basket.yaml")
    assert str(error.value) == line


def test_an_unknown_key_that_resembles_none_is_answered_with_all_known_ones() -> None:
    with pytest.raises(UserError, match=r"front\.xyz: unknown key, found 1; known keys: radius, spokes$"):
        parse(Bicycle, {"name": "a", "front": {"xyz": 1}}, "bicycle.yaml")


def test_broken_yaml_is_reported_with_its_line(tmp_path: Path) -> None:
    # The tab that may not indent stands in line 2, first column.
    path = write(tmp_path, "front:\n\tspokes: 24\n")
    with pytest.raises(UserError, match=r"bicycle\.yaml: line 2, column 1 not valid YAML: .*'\\t'"):
        read_yaml(path)


@pytest.mark.parametrize("text", ["- a\n- b\n", "just words\n", ""])
def test_a_file_that_holds_no_mapping_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(UserError, match=r"bicycle\.yaml: found \w+, expected `key: value` lines"):
        read_yaml(write(tmp_path, text))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"absent\.yaml: no such file; check the path"):
        read_yaml(tmp_path / "absent.yaml")


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "binary.yaml"
    path.write_bytes(b"name: \xff\xfe")
    with pytest.raises(UserError, match=r"binary\.yaml: cannot be read as text: .*invalid start byte"):
        read_yaml(path)


def test_a_directory_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot be read as text: .*directory"):
        read_yaml(tmp_path)


def test_a_yaml_file_cannot_run_code(tmp_path: Path) -> None:
    path = write(tmp_path, f"name: !!python/object/apply:os.mkdir [{tmp_path}/ran]\n")
    with pytest.raises(UserError, match="not valid YAML: could not determine a constructor"):
        read_yaml(path)
    assert not (tmp_path / "ran").exists()


def test_a_date_that_no_calendar_has_is_a_persons_mistake(tmp_path: Path) -> None:
    path = write(tmp_path, "name: a\nbought: 2020-02-30\n")
    with pytest.raises(UserError, match=r"bicycle\.yaml"):
        read_yaml(path)


def test_a_key_given_twice_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "name: Rover\nname: Other\n")
    with pytest.raises(UserError, match="name"):
        read_yaml(path)


def test_assignments_are_laid_over_the_content() -> None:
    content = {"name": "Rover", "front": {"radius": 0.3, "spokes": 32}}
    result = override(content, ["front.spokes=24", "name=Other", "spare.radius=0.2"])
    assert result == {"name": "Other", "front": {"radius": 0.3, "spokes": 24}, "spare": {"radius": 0.2}}


def test_assignments_leave_the_content_itself_alone() -> None:
    content = {"front": {"tyre": {"width": 23}}}
    result = override(content, ["front.tyre.width=28"])
    assert result == {"front": {"tyre": {"width": 28}}}
    assert content == {"front": {"tyre": {"width": 23}}}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("24", 24),
        ("0.5", 0.5),
        ("true", True),
        ("[a, b]", ["a", "b"]),
        ("1990-01-01", date(1990, 1, 1)),
        ("a=b", "a=b"),
        ("", None),
    ],
)
def test_a_value_is_read_as_yaml(text: str, value: object) -> None:
    assert override({}, [f"key={text}"]) == {"key": value}


@pytest.mark.parametrize("assignment", ["front.spokes", "=24", "front.=24", ".spokes=24", "front..spokes=24"])
def test_an_assignment_without_key_or_value_is_refused(assignment: str) -> None:
    with pytest.raises(UserError, match=r"expected key=value, such as train\.steps=500") as caught:
        override({}, [assignment])
    assert f"--set {assignment}:" in str(caught.value)


def test_a_value_that_is_no_yaml_is_refused() -> None:
    with pytest.raises(UserError, match=r"--set name=\[a: the value '\[a' is not valid YAML; quote it"):
        override({}, ["name=[a"])


def test_an_assigned_date_that_no_calendar_has_is_a_persons_mistake() -> None:
    with pytest.raises(UserError, match="--set bought=2020-02-30"):
        override({}, ["bought=2020-02-30"])


def test_an_assignment_of_an_unknown_key_is_caught_by_the_model() -> None:
    with pytest.raises(UserError, match=r"front\.spoke: unknown key, found 24; did you mean `spokes`"):
        parse(Bicycle, override({"name": "a"}, ["front.spoke=24"]), "bicycle.yaml")
