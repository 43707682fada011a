"""Fields that are sums over a span of time, such as precipitation."""

from typing import Any

# ECMWF parameter database: variables that ERA5 gives as accumulations, with units of an amount.
_RAIN = ("tp", "cp", "lsp", "sf", "csf", "lsf", "e", "pev", "ro", "sro", "ssro", "smlt", "es", "total_precipitation")
_HEAT = ("slhf", "sshf", "ssr", "ssrc", "ssrd", "ssrdc", "str", "strc", "strd", "strdc", "tsr", "tsrc", "ttr", "ttrc")
_OTHERS = ("tisr", "fdir", "cdir", "ewss", "nsss", "lgws", "mgws", "gwd", "bld", "uvb")
_AMOUNTS = ("m", "j m**-2", "j m-2", "kg m**-2", "kg m-2", "n m**-2 s", "m of water equivalent", "mm")


def is_accumulated(variable: str, units: str, attributes: dict[Any, Any]) -> bool:
    """Whether a variable is a sum over a span of time, by what the file says, or by ERA5's name and unit."""
    step_type = attributes.get("GRIB_stepType")
    if step_type is not None:
        return str(step_type) == "accum"
    if "time: sum" in str(attributes.get("cell_methods", "")):
        return True
    return variable.lower() in (*_RAIN, *_HEAT, *_OTHERS) and units.strip().lower() in _AMOUNTS


def accumulation_line(names: list[str]) -> str:
    """What to say of such variables."""
    verb = "is an accumulation" if len(names) == 1 else "are accumulations"
    return f"{', '.join(names)} {verb} over the time up to each frame: kept as the file has them"
