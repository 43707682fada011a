"""Downloads over HTTP that go on where they were cut off, and that prove what they got."""

import base64
import errno
import hashlib
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import urllib3
from urllib3.exceptions import HTTPError, MaxRetryError
from urllib3.util import Retry

from hyperslab.data.fetch.manifest import Manifest
from hyperslab.data.fetch.plan import Item
from hyperslab.data.fetch.rate import Rate
from hyperslab.data.files import BLOCK_BYTES, sync
from hyperslab.errors import Stopped, UserError, disk_error

PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses that a server may take back when asked again."""
_MD5 = re.compile(r'"?([0-9a-fA-F]{32})"?')


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """What a server says about a file."""

    size_bytes: int | None
    validator: str
    """Its ETag, or the date of its last change; empty where the server gives neither."""
    md5: str = ""
    """In hexadecimal, where the server tells it."""


class Downloads:
    """All downloads into one directory."""

    def __init__(self, out: Path, manifest: Manifest, rate: Rate, *, tries: int = 6, patience_seconds: float = 0.5):
        self.out = out
        self.manifest = manifest
        self.rate = rate
        self.stop = threading.Event()
        """Set to end all downloads at their next block."""
        self._retry = Retry(
            total=tries,
            backoff_factor=patience_seconds,
            backoff_max=60,
            status_forcelist=PASSING,
            allowed_methods=["GET"],
            raise_on_status=False,
        )
        timeout = urllib3.Timeout(connect=30, read=120)
        self._pool = urllib3.PoolManager(num_pools=16, maxsize=64, retries=self._retry, timeout=timeout)

    def waits(self) -> Iterator[float]:
        """Seconds to wait after each failure of a transfer that is not by HTTP alone; as many as there are tries."""
        yield from (self._retry.backoff_factor * 2**number for number in range(self._retry.total or 1))

    def look(self, url: str, origin: str) -> Remote:
        """What the server says about a file, without fetching it.

        Raises
        ------
        UserError
            When the server cannot be reached, or does not give the file.
        """
        # A request for the first byte: unlike HEAD, servers and signed URLs allow it wherever they allow the file.
        response = self._ask(url, origin, {"Range": "bytes=0-0"})
        try:
            return _remote(response)
        finally:
            # A connection whose content is left unread cannot serve another request.
            response.drain_conn() if response.status == 206 else response.close()

    def get(self, item: Item, url: str, *, md5: str = "") -> None:
        """Fetch a file to its place, going on with what is there of it, and record it.

        Parameters
        ----------
        url
            Where it really comes from; it may hold a signature, and is told to nobody.
        md5
            What its MD5 must be, in hexadecimal, where known.

        Raises
        ------
        UserError
            When the server cannot be reached, the content is not what it says, or the disk is full.
        """
        target = target_of(self.out, item)
        part = target.with_name(f"{target.name}.part")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            item, digest, verified = self._whole(item, url, part, md5)
            sync(part)
            part.replace(target)
            sync(target.parent)
        except OSError as error:
            there = part.stat().st_size if part.exists() else 0
            raise disk_mistake(error, target, item.size_bytes and item.size_bytes - there) from None
        self.manifest.record(
            item.name,
            "finished",
            origin=item.origin,
            size_bytes=target.stat().st_size,
            sha256=digest,
            validator=item.validator,
            verified=verified,
        )

    def _whole(self, item: Item, url: str, part: Path, md5: str) -> tuple[Item, str, str]:
        """Fetch until the whole file is in `part`: the item as it is now, its SHA-256, what proved it."""
        retry = self._retry
        for _ in range(3):
            while True:
                before = part.stat().st_size if part.exists() else 0
                try:
                    found = self._more(item, url, part)
                    break
                except HTTPError as error:
                    # The connection broke amid the content, which the library's own retries do not see.
                    grown = part.exists() and part.stat().st_size > before
                    retry = self._again(self._retry if grown else retry, item, error)
            item = replace(item, size_bytes=found.size_bytes, validator=found.validator)
            sha256, own_md5 = _digests(part)
            complete = found.size_bytes is None or part.stat().st_size == found.size_bytes
            wanted = md5 or found.md5
            if complete and wanted in ("", own_md5):
                return item, sha256, "md5" if wanted else "size" if found.size_bytes is not None else ""
            part.unlink()
        raise UserError(
            f"{item.origin}: {part.name.removesuffix('.part')} came three times with other content than the server "
            f"announces (MD5 {wanted or 'unknown'}, {found.size_bytes} bytes); ask those who keep it"
        )

    def _again(self, retry: Retry, item: Item, error: HTTPError) -> Retry:
        try:
            following = retry.increment("GET", "/", error=error)
        except (MaxRetryError, HTTPError):
            raise UserError(f"{item.origin}: {_reason(error)}; try again later: what is there of it is kept") from None
        following.sleep()
        return following

    def _more(self, item: Item, url: str, part: Path) -> Remote:
        """Fetch what `part` lacks; the server's word on the whole file."""
        begun = self.manifest.begun(item.name)
        offset = part.stat().st_size if part.exists() else 0
        validator = begun["validator"] if begun else ""
        if not validator or (item.validator and item.validator != validator):
            offset = 0
        headers = {}
        if offset:
            # A server whose content has changed ignores the range, and sends the whole of the new one.
            headers = {"Range": f"bytes={offset}-", "If-Range": validator}
        response = self._ask(url, item.origin, headers, also=(416,))
        try:
            found = _remote(response)
            if not offset and response.status != 200:
                raise UserError(f"{item.origin}: {_refusal(response.status)}")
            if response.status == 416 and begun and found.size_bytes == offset == begun["size_bytes"]:
                # All of it is there already.
                return replace(found, validator=validator, md5=begun["md5"])
            if response.status == 416 or (
                response.status == 206 and (_first_byte(response), found.validator) != (offset, validator)
            ):
                part.unlink()
                return self._more(item, url, part)
            if response.status == 206 and begun:
                found = replace(found, md5=found.md5 or begun["md5"])
            else:
                offset = 0
            facts = {"validator": found.validator, "size_bytes": found.size_bytes, "md5": found.md5}
            self.manifest.record(item.name, "begun", origin=item.origin, **{**item.details.get("keep", {}), **facts})
            with part.open("ab" if offset else "wb") as file:
                self._copy(response, file)
            return found
        finally:
            response.close()

    def _copy(self, response: Any, file: BinaryIO) -> None:
        while block := response.read(self.rate.block_bytes, decode_content=False):
            if self.stop.is_set():
                raise Stopped("the fetch was stopped; the same command goes on with it")
            file.write(block)
            self.rate.take(len(block))

    def _ask(self, url: str, origin: str, headers: dict[str, str], also: tuple[int, ...] = ()) -> Any:
        try:
            response = self._pool.request(
                "GET", url, headers={"Accept-Encoding": "identity", **headers}, preload_content=False
            )
        except (HTTPError, ValueError) as error:
            raise UserError(f"{origin}: {_reason(error)}; check the address and the network, then try again") from None
        if response.status in (200, 206, *also):
            return response
        response.close()
        raise UserError(f"{origin}: {_refusal(response.status)}")


def target_of(out: Path, item: Item) -> Path:
    """Where a file goes.

    Raises
    ------
    UserError
        When a link in the output directory leads it elsewhere.
    """
    target = out / item.name
    if not target.resolve().is_relative_to(out.resolve()) or target.is_symlink():
        raise UserError(f"{target}: a link leads out of the output directory; remove it")
    return target


def _remote(response: Any) -> Remote:
    headers = response.headers
    size = headers.get("Content-Length")
    if response.status != 200:
        size = headers.get("Content-Range", "").rpartition("/")[2]
    etag = headers.get("ETag", "")
    strong = "" if etag.startswith("W/") else etag
    return Remote(
        size_bytes=int(size) if size and size.isdigit() else None,
        validator=strong or headers.get("Last-Modified", ""),
        md5=_md5(response),
    )


def _md5(response: Any) -> str:
    """The MD5 of a whole file as its server tells it: as such, in Google's header, or as the ETag of Amazon's."""
    headers = response.headers
    told = re.search(r"md5=([A-Za-z0-9+/]{22}==)", headers.get("x-goog-hash", ""))
    if told:
        return base64.b64decode(told.group(1)).hex()
    # Of a part, this header may tell the part's.
    if response.status == 200 and re.fullmatch(r"[A-Za-z0-9+/]{22}==", headers.get("Content-MD5", "")):
        return base64.b64decode(headers["Content-MD5"]).hex()
    amazon = any(name.lower().startswith("x-amz") for name in headers)
    encrypted = headers.get("x-amz-server-side-encryption", "AES256") != "AES256" or any(
        name.lower().startswith("x-amz-server-side-encryption-customer") for name in headers
    )
    match = _MD5.fullmatch(headers.get("ETag", ""))
    return match.group(1).lower() if match and amazon and not encrypted else ""


def _first_byte(response: Any) -> int:
    match = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
    return int(match.group(1)) if match else -1


def _digests(path: Path) -> tuple[str, str]:
    sha256, md5 = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            sha256.update(block)
            md5.update(block)
    return sha256.hexdigest(), md5.hexdigest()


def _reason(error: Exception) -> str:
    """An error in plain words; those of the library would tell the whole URL."""
    cause = error.reason if isinstance(error, MaxRetryError) and error.reason else error
    words = {
        "NameResolutionError": "the server's name is unknown",
        "NewConnectionError": "the server cannot be reached",
        "ConnectTimeoutError": "the server does not answer",
        "ReadTimeoutError": "the server stopped sending",
        "ProtocolError": "the connection broke",
        "IncompleteRead": "the connection broke",
        "SSLError": "the server's certificate is not trusted",
        "ResponseError": "the server goes on refusing",
        "LocationParseError": "not a URL",
    }
    return words.get(type(cause).__name__, f"the transfer failed ({type(cause).__name__})")


def _refusal(status: int) -> str:
    advice = {
        401: "it wants a key; set up the archive's client",
        403: "it denies access; check your key, or accept the archive's terms on its site",
        404: "there is no such file; check the address",
    }.get(status, "try again later" if status in PASSING else "check the address")
    return f"the server answered {status}: {advice}"


def disk_mistake(error: OSError, target: Path, need_bytes: int | None) -> Exception:
    """The mistake behind an error of the disk, or the error itself.

    Parameters
    ----------
    need_bytes
        How much room the file still needs, where known.
    """
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        need = f" ({need_bytes:,} bytes are needed for it)" if need_bytes else ""
        return UserError(f"{target}: no space left on the disk{need}; free some room, then run the same command again")
    return disk_error(error, target) or error
