"""What one raw file holds, whatever its format."""

from hyperslab.data.sources.era5.array_header import read_contents as read_array_contents
from hyperslab.data.sources.era5.formats import GRIB, ZIP, damage, format_of, open_raw
from hyperslab.data.sources.era5.header import Contents
from hyperslab.data.sources.era5.zipped import extract, members_of


def read_contents(path: str) -> Contents:
    """What a file holds, by its headers.

    Raises
    ------
    UserError
        When it cannot be read, or holds no field on a regular grid.
    """
    kind = format_of(path)
    return _read_zip(path) if kind == ZIP else _read_file(path, path, "", kind)


def _read_file(file: str, path: str, part: str, kind: str) -> Contents:
    if kind == GRIB:
        # Loading eccodes takes half a second, which only GRIB pays.
        from hyperslab.data.sources.era5.grib_header import read_grib_contents

        return read_grib_contents(file, path, part)
    where = f"{path} ({part})" if part else path
    with open_raw(file) as dataset, damage(where, "its header cannot be read"):
        return read_array_contents(dataset, path, part, kind)


def _read_zip(path: str) -> Contents:
    members = members_of(path)
    contents = []
    for name in members.fields:
        unpacked = extract(path, name)
        contents.append(_read_file(unpacked.path, path, name, format_of(unpacked.path)))
    held_words = [f"{name}: {held.words}" for name, held in zip(members.fields, contents, strict=True)]
    return Contents(
        path=path,
        words=f"zip of {', '.join(held_words)}",
        headers=tuple(header for held in contents for header in held.headers),
        left_out={
            **{name: reason for held in contents for name, reason in held.left_out.items()},
            **dict.fromkeys(members.others, "it is neither netCDF nor GRIB"),
        },
    )
