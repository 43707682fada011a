"""The archives that files come from: what they hold of a request, and how a file of theirs is got."""

import importlib
import itertools
from dataclasses import replace
from typing import Any, Protocol
from urllib.parse import urlsplit

from hyperslab.data.fetch.download import Downloads
from hyperslab.data.fetch.plan import (
    OPENNEURO_BUCKET,
    ArcoRequest,
    CdsRequest,
    Item,
    OpenneuroRequest,
    Request,
    UrlsRequest,
    cds_items,
    check_names,
    chosen,
    safe_name,
    shown,
    url_name,
)
from hyperslab.errors import Stopped, UserError


class Archive(Protocol):
    """What is common to archives."""

    def plan(self, downloads: Downloads) -> list[Item]:
        """The files that a request asks for."""
        ...

    def get(self, item: Item, downloads: Downloads) -> None:
        """Fetch one of them and record it."""
        ...


def archive_of(request: Request) -> Archive:
    """The archive that a request is made to."""
    if isinstance(request, CdsRequest):
        return Cds(request)
    if isinstance(request, OpenneuroRequest):
        return Openneuro(request)
    if isinstance(request, ArcoRequest):
        from hyperslab.data.fetch.arco import Arco

        return Arco(request)
    return Urls(request)


class Urls:
    """Files that have a URL each."""

    def __init__(self, request: UrlsRequest) -> None:
        self._request = request
        self._s3: Any = None

    def plan(self, downloads: Downloads) -> list[Item]:
        """Ask the server of each file for its size."""
        names = [url_name(url) for url in self._request.urls]
        items = [
            Item(name=name, origin=shown(url), details={"url": url})
            for name, url in zip(names, self._request.urls, strict=True)
        ]
        check_names(items)
        found = [downloads.look(self._address(item), item.origin) for item in items]
        return [
            replace(item, size_bytes=remote.size_bytes, validator=remote.validator)
            for item, remote in zip(items, found, strict=True)
        ]

    def get(self, item: Item, downloads: Downloads) -> None:
        """Fetch one file."""
        downloads.get(item, self._address(item))

    def _address(self, item: Item) -> str:
        url: str = item.details["url"]
        if urlsplit(url).scheme != "s3":
            return url
        if self._s3 is None:
            self._s3 = _s3_client(anonymous=not _has_s3_key())
        return _signed(self._s3, url.removeprefix("s3://"), item.origin)


class Openneuro:
    """Files of an OpenNeuro dataset, in its bucket on S3, which needs no key."""

    def __init__(self, request: OpenneuroRequest) -> None:
        self._request = request
        self._s3 = _s3_client(anonymous=True)

    def plan(self, downloads: Downloads) -> list[Item]:  # noqa: ARG002
        """List the dataset."""
        root = f"{OPENNEURO_BUCKET}/{self._request.dataset}"
        try:
            listing: dict[str, dict[str, Any]] = self._s3.find(root, detail=True)
        except Exception as error:
            # Beside errors of its own the client passes on those of the libraries below it.
            raise UserError(f"s3://{root}: cannot be listed: {_first_line(error)}; check the network") from None
        held = {key.removeprefix(f"{root}/"): entry for key, entry in listing.items()}
        if not held:
            raise UserError(f"s3://{root}: there is no such dataset; check its number")
        names = chosen(held, self._request.include, self._request.exclude)
        if not names:
            examples = ", ".join(itertools.islice(held, 3))
            raise UserError(f"s3://{root}: include fits none of its {len(held)} files, such as {examples}")
        items = [
            Item(
                name=safe_name(f"{self._request.dataset}/{name}", f"s3://{root}"),
                origin=f"s3://{root}/{name}",
                size_bytes=held[name]["size"],
                validator=held[name].get("ETag", ""),
            )
            for name in names
        ]
        check_names(items)
        return items

    def get(self, item: Item, downloads: Downloads) -> None:
        """Fetch one file."""
        downloads.get(item, _signed(self._s3, item.origin.removeprefix("s3://"), item.origin))


class Cds:
    """The Copernicus Climate Data Store, through its own client, which finds the key in its own place."""

    def __init__(self, request: CdsRequest, *, tries: int = 8, patience_seconds: float = 30.0) -> None:
        self._request = request
        self._options = {"retry_max": tries, "sleep_max": patience_seconds}

    def plan(self, downloads: Downloads) -> list[Item]:  # noqa: ARG002
        """One file for each variable and month; nothing is asked of the store yet."""
        return cds_items(self._request)

    def get(self, item: Item, downloads: Downloads) -> None:
        """Ask the store for a file, wait until it is made, and fetch it."""
        import cdsapi.api

        try:
            _, key, _ = cdsapi.api.get_url_key_verify(None, None, None)
        except Exception as error:
            # The client has one bare Exception for a missing or incomplete configuration.
            raise UserError(
                f"{item.origin}: no key: {_first_line(error)}; see https://cds.climate.copernicus.eu/how-to-api"
            ) from None
        try:
            url, md5, request_id = self._made(item, downloads)
        except (UserError, Stopped):
            raise
        except Exception as error:
            # The client passes on whatever its own libraries raise; their words may hold the key.
            raise UserError(f"{item.origin}: {item.name}: {_without(_first_line(error), key)}") from None
        downloads.get(replace(item, details={**item.details, "keep": {"request_id": request_id}}), url, md5=md5)

    def _made(self, item: Item, downloads: Downloads) -> tuple[str, str, str]:
        """URL and MD5 of a file that the store has made, and the number of the request."""
        import cdsapi
        from requests import HTTPError

        client = cdsapi.Client(
            quiet=True, debug=False, progress=False, debug_callback=_silent, info_callback=_silent, **self._options
        )
        begun = downloads.manifest.begun(item.name) or {}
        remote: Any = None
        if begun.get("request_id"):
            try:
                remote = client.client.get_remote(begun["request_id"])
            except HTTPError:
                remote = None  # The store forgets requests after some time.
        if remote is None:
            remote = client.client.submit(item.details["dataset"], item.details["request"])
            facts = {"validator": "", "size_bytes": None, "md5": "", "request_id": remote.request_id}
            downloads.manifest.record(item.name, "begun", origin=item.origin, **facts)
        wait = 1.0
        while not remote.results_ready:
            # The client's own waiting, which may take hours, would not hear that a person has stopped the fetch.
            if downloads.stop.wait(wait):
                raise Stopped("the fetch was stopped; the same command goes on with it")
            wait = min(1.5 * wait, self._options["sleep_max"])
        results = remote.get_results()
        md5 = str(results.asset.get("file:checksum", ""))
        return results.location, md5 if len(md5) == 32 else "", remote.request_id


def _s3_client(*, anonymous: bool) -> Any:
    import s3fs

    return s3fs.S3FileSystem(anon=anonymous, skip_instance_cache=True, use_listings_cache=False)


def _has_s3_key() -> bool:
    """Whether the AWS client finds a key in its own places: the environment, or its files."""
    return importlib.import_module("botocore.session").get_session().get_credentials() is not None


def _signed(s3: Any, path: str, origin: str) -> str:
    """A URL that gives one file of a bucket for some hours."""
    try:
        return str(s3.sign(path, expiration=12 * 3600))
    except (OSError, ValueError) as error:
        raise UserError(f"{origin}: {_first_line(error)}; check the address and your AWS settings") from None


def _without(text: str, key: str) -> str:
    for part in {key, *key.split(":")}:
        if len(part) > 3:
            text = text.replace(part, "...")
    return text


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _silent(*_: object, **__: object) -> None:
    """Take no notice: the client's words may hold the key."""
