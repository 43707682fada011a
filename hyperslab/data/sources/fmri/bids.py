"""What a file's name and its neighbours say: entities, sidecars, masks, confounds (BIDS 1.10, fMRIPrep)."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hyperslab.errors import UserError

ENTITY = re.compile(r"([a-zA-Z]+)-([a-zA-Z0-9]+)")
# ABIDE's preprocessed archive: the site, perhaps its part, and a number of seven digits, such as Leuven_1_0050682.
ABIDE = re.compile(r"([A-Za-z]+(?:_[A-Za-z0-9])?_\d{7})_")
SERIES_SUFFIXES = (".nii", ".nii.gz", ".nii.bz2", ".func.gii", ".func.gii.gz")
OTHER_SUFFIXES = (".head", ".par", ".gii", ".csv", ".tsv", ".1d", ".txt", ".mat", ".npy", ".npz")
APART = ("space", "res", "den", "desc", "hemi")
"""Entities in which copies of the same scan differ."""
LABELLED = ("sub", "ses", "task", "run", *APART)
"""Entities that have a label of their own, or tell no scans apart."""
ELSEWHERE = ("derivatives", "sourcedata")
"""Folders of a data set that hold other data sets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Name:
    """What a file's name says."""

    entities: dict[str, str]
    suffix: str
    """What stands after the last entity, such as `bold`."""

    @classmethod
    def of(cls, path: Path) -> "Name":
        """The entities and the suffix of a file's name."""
        parts = path.name.split(".")[0].split("_")
        found = [match for part in parts if (match := ENTITY.fullmatch(part))]
        suffix = "" if ENTITY.fullmatch(parts[-1]) else parts[-1]
        return cls(entities={match[1]: match[2] for match in found}, suffix=suffix)


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """Which run a file is."""

    subject: str
    session: str
    task: str
    run: str
    scan: tuple[tuple[str, str], ...] = ()
    """What else tells runs apart: acquisition, direction, echo."""
    oddity: str = ""

    @property
    def order(self) -> tuple[object, ...]:
        """Key by which runs are sorted: numbers by value."""
        return tuple(map(_natural, (self.subject, self.session, self.task, self.run, str(self.scan))))


def label_runs(paths: Sequence[Path]) -> list[Labels]:
    """Subject, session, task and run of each file.

    Raises
    ------
    UserError
        When two files are the same run.
    """
    roots = [_root(path) for path in paths]
    known = {root for root in roots if root is not None}
    # Data sets are told apart by their folder's name, or by its path where names repeat.
    named = {root: root.name for root in known} if len({root.name for root in known}) == len(known) else {}
    stems = _distinct_stems(paths)
    labels = []
    for path, root, stem in zip(paths, roots, stems, strict=True):
        entities = Name.of(path).entities
        subject, oddity = _subject(path, entities, stem)
        if root is not None and len(known) > 1:
            subject = f"{named.get(root, root)}/{subject}"
        labels.append(
            Labels(
                subject=subject,
                session=entities.get("ses", ""),
                task=entities.get("task", ""),
                run=entities.get("run", ""),
                scan=tuple(sorted((key, value) for key, value in entities.items() if key not in LABELLED)),
                oddity=oddity,
            )
        )
    _check_distinct(paths, labels)
    return labels


def _subject(path: Path, entities: dict[str, str], stem: str) -> tuple[str, str]:
    if "sub" in entities:
        return entities["sub"], ""
    folder = next((part for part in reversed(path.parts[:-1]) if re.fullmatch(r"sub-[a-zA-Z0-9]+", part)), None)
    if folder is not None:
        return folder.removeprefix("sub-"), f"its subject is that of its folder {folder}"
    if match := ABIDE.match(path.name):
        return match[1], f"its subject is the beginning of its name, {match[1]}"
    return stem, "its name states no subject: it counts as a subject of its own"


def _distinct_stems(paths: Sequence[Path]) -> list[str]:
    """The name of each file without its endings; with its folders where names repeat."""
    stems = [path.name.split(".")[0] for path in paths]
    if len(set(stems)) == len(stems):
        return stems
    longest = min(len(path.parts) for path in paths) - 1
    shared = next((n for n in range(longest, 0, -1) if len({path.parts[:n] for path in paths}) == 1), 0)
    return ["/".join((*path.parts[shared:-1], path.name.split(".")[0])) for path in paths]


def _check_distinct(paths: Sequence[Path], labels: Sequence[Labels]) -> None:
    first: dict[tuple[object, ...], Path] = {}
    for path, label in zip(paths, labels, strict=True):
        key = (label.subject, label.session, label.task, label.run, label.scan)
        if (other := first.setdefault(key, path)) != path:
            raise UserError(
                f"data.files: {other} and {path} are the same run (subject {label.subject or 'unknown'}"
                f"{', task ' + label.task if label.task else ''}{', run ' + label.run if label.run else ''}); "
                "name each run once, in one space"
            )


def _natural(text: str) -> tuple[tuple[int, int, str], ...]:
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", text) if part)


def _root(path: Path) -> Path | None:
    """The folder of the data set: the one that holds the folder `sub-<label>`."""
    for parent in path.parents:
        if re.fullmatch(r"sub-[a-zA-Z0-9]+", parent.name):
            return parent.parent
    return None


class Neighbours:
    """What lies beside runs; each folder is listed once."""

    def __init__(self) -> None:
        self._folders: dict[Path, list[Path]] = {}
        self._documents: dict[Path, dict[str, object]] = {}

    def _in(self, folder: Path) -> list[Path]:
        if folder not in self._folders:
            try:
                self._folders[folder] = sorted(folder.iterdir())
            except OSError:
                self._folders[folder] = []
        return self._folders[folder]

    def repetition_seconds(self, path: Path) -> float | None:
        """RepetitionTime of the sidecars of a run; the nearest one that states it holds.

        Raises
        ------
        UserError
            When a sidecar is no JSON, or its RepetitionTime is no number.
        """
        for sidecar in self._sidecars(path):
            document = self._document(sidecar)
            value = document.get("RepetitionTime")
            if value is not None:
                if isinstance(value, bool) or not isinstance(value, int | float):
                    raise UserError(f"{sidecar}: RepetitionTime: found {value!r}, must be a number of seconds; mend it")
                return float(value)
            if "VolumeTiming" in document:
                raise UserError(
                    f"{sidecar}: states VolumeTiming, of volumes that do not follow at equal times; "
                    "leave the run out, or give data.fmri.repetition_seconds"
                )
        return None

    def _sidecars(self, path: Path) -> Iterator[Path]:
        """The sidecars that hold for a run by BIDS' inheritance, nearest first."""
        name, root = Name.of(path), _root(path)
        for folder in path.parents:
            held = [other for other in self._in(folder) if other.name.endswith(".json")]
            applying = [(Name.of(other), other) for other in held]
            applying = [
                (own, other)
                for own, other in applying
                if own.suffix == name.suffix and own.entities.items() <= name.entities.items()
            ]
            yield from (other for own, other in sorted(applying, key=lambda pair: -len(pair[0].entities)))
            if root is None or folder == root:
                return

    def _document(self, path: Path) -> dict[str, object]:
        if path not in self._documents:
            try:
                content = json.loads(path.read_text(encoding="utf-8"))
            except (OSError, ValueError, RecursionError) as error:
                raise UserError(f"{path}: is a sidecar that cannot be read ({error}); mend or remove it") from None
            if not isinstance(content, dict):
                raise UserError(f"{path}: is a sidecar that holds no keys and values; mend or remove it")
            self._documents[path] = content
        return self._documents[path]

    def confounds(self, path: Path) -> Path:
        """The table of confounds that fMRIPrep made of a run.

        Raises
        ------
        UserError
            When there is none beside it, or several.
        """
        return self._one(path, "confounds", ("timeseries.tsv", "regressors.tsv"), APART)

    def brain_mask(self, path: Path) -> Path:
        """The brain mask that fMRIPrep made of a run, in the run's own space.

        Raises
        ------
        UserError
            When there is none beside it, or several.
        """
        return self._one(path, "brain", ("mask.nii.gz", "mask.nii"), ("desc", "den", "hemi"))

    def _one(self, path: Path, desc: str, endings: tuple[str, ...], apart: tuple[str, ...]) -> Path:
        """The file beside a run that has its entities, but for those `apart`, and the description `desc`."""
        wanted = {key: value for key, value in Name.of(path).entities.items() if key not in apart} | {"desc": desc}
        found = [
            other
            for other in self._in(path.parent)
            if other.name.endswith(tuple(f"_{ending}" for ending in endings)) and Name.of(other).entities == wanted
        ]
        if len(found) != 1:
            what = " and ".join(other.name for other in found) or "none"
            raise UserError(f"{path}: needs one file *_desc-{desc}_{endings[0]} of its run beside it, found {what}")
        return found[0]


def find_runs(folder: Path) -> list[Path]:
    """The runs in a directory: those named `_bold` below it, of BIDS or fMRIPrep; otherwise all series beside it.

    Raises
    ------
    UserError
        When it holds none, or the same runs in several spaces.
    """
    named = [path for path in _walk(folder) if _is_bold(path)]
    derived = [path for path in named if "desc" in Name.of(path).entities or "space" in Name.of(path).entities]
    runs = derived or named
    forms = sorted({_form(path) for path in runs})
    if len(forms) > 1:
        raise UserError(
            f"{folder}: holds runs in several forms ({', '.join(forms)}); name those of one in data.files, "
            f"such as {folder}/**/{forms[0]}"
        )
    if not runs:
        runs = [path for path in _listing(folder) if path.name.lower().endswith(SERIES_SUFFIXES + OTHER_SUFFIXES)]
    if not runs:
        raise UserError(f"{folder}: holds no runs; name the files of the runs in data.files")
    return runs


def _listing(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        raise UserError(f"{folder}: cannot be listed ({error.strerror}); change its permissions") from None


def _walk(folder: Path, above: tuple[Path, ...] = ()) -> Iterator[Path]:
    for path in _listing(folder):
        if not path.is_dir():
            yield path
        elif not path.name.startswith(".") and path.name not in ELSEWHERE and path.resolve() not in above:
            yield from _walk(path, (*above, path.resolve()))


def _is_bold(path: Path) -> bool:
    return Name.of(path).suffix == "bold" and path.name.lower().endswith(SERIES_SUFFIXES)


def _form(path: Path) -> str:
    """In which space, resolution, processing and format a run is given, as a pattern of names."""
    match = re.search(rf"_(?:{'|'.join(APART)})-.*|_bold\..*", path.name)
    return f"*{match[0]}" if match else path.name
