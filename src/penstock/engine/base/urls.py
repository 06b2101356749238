"""URLs as they may be told: who reads an error or a log is to learn no password from it."""

from __future__ import annotations

import contextlib
import hashlib
import re
from pathlib import Path

from ...errors import ConfigError

_URL = re.compile(r"([A-Za-z][\w+.:-]+:/+)(?:[^/]*@)?([^?#]*).*", re.DOTALL)
_LINK = re.compile(r"::(?=(?:\w+::)*[A-Za-z][\w+.-]*:/)")  # between the URLs of a chain of fsspec's
_DIGEST = re.compile(r"#~[0-9a-f]{16}$")
_SIGNS = re.compile(r"x-(amz|goog)-.*|x-oss-(?!process).*|sig|signature|token|security-token")
_BESIDE = (
    frozenset(  # what signatures of S3, CloudFront, Google, Alibaba and Azure have beside them
        "expires awsaccesskeyid googleaccessid ossaccesskeyid policy key-pair-id hash-algorithm "
        "sv se sp st sr ss srt spr sip skoid sktid skt ske sks skv saoid suoid scid sdd ses".split()
    )
)

_BEFORE_GLOB = re.compile(
    r"(?:[\w+.:-]+:/+(?:[^/]*@)?\[[\da-f:.]*:[\da-f:.]*(?:%[^]/]*)?\])?[^*?\[]*", re.IGNORECASE
)
_PLACE = re.compile(r"(?:\[[^]]*\]|[^:]*)(?::\d*)?")
_QUERY = re.compile(r"\?[\w.~%-]+=")


def is_url(path: str) -> bool:
    """Whether this is a URL, also one that `pathlib` has taken a slash from.

    >>> is_url("s3://bucket/x"), is_url("https:/host/x"), is_url("c:/x"), is_url("a/b")
    (True, True, False, False)
    """
    return bool(_URL.match(path))


def without_secrets(path: str) -> str:
    """A path, or a URL without user, password, query and fragment.

    >>> without_secrets("https://me:secret@host/x.jsonl?token=secret"), without_secrets("a/b?.jsonl")
    ('https://host/x.jsonl', 'a/b?.jsonl')
    """
    return _URL.sub(r"\1\2", path)


def spelled_out(path: str) -> str:
    """A URL with both of its slashes, also one that `pathlib` has taken one from.

    >>> spelled_out("s3:/bucket/x"), spelled_out("memory://x"), spelled_out("file:///x")
    ('s3://bucket/x', 'memory://x', 'file:///x')
    """
    scheme, _, rest = path.removesuffix(":").partition(":/")
    return f"{scheme}://{rest.removeprefix('/')}"


def scheme_of(path: str) -> str:
    """The protocol of a URL, as it is spelled.

    >>> scheme_of("S3://bucket/x"), scheme_of("simplecache::s3://bucket/x")
    ('s3', 'simplecache::s3')
    """
    return path.partition(":/")[0].lower()


def before_glob(path: str) -> str:
    """What stands before the first wildcard: all of a path without one. Brackets of an address of
    IPv6 are none.

    >>> before_glob("a/b-[0-9].txt"), before_glob("http://[::1]:80/x"), before_glob("s3://[ab]/x")
    ('a/b-', 'http://[::1]:80/x', 's3://')
    """
    found = _BEFORE_GLOB.match(path)
    return found[0] if found else ""


def is_glob(path: str) -> bool:
    """Whether a path has a wildcard."""
    return before_glob(path) != path


def local(path: str | Path) -> Path:
    """The path of this machine that a user names. URLs are refused by name: nothing is written to
    stores.

    A relative path that begins like a URL (a folder named `s3:`) becomes absolute, so that it stays
    a path.

    >>> local("file:///a/b"), local("a/b")
    (PosixPath('/a/b'), PosixPath('a/b'))
    """
    text = spellable(path)
    if not is_url(text):
        try:
            found = Path(path).expanduser()
        except RuntimeError as error:
            raise ConfigError(f"{text}: {error} Write the path without ~, or set HOME") from None
        return found.absolute() if is_url(f"{found}/") else found
    if scheme_of(text) in ("file", "local"):
        return Path("/" + spelled_out(text).split("://", 1)[1].lstrip("/"))
    raise ConfigError(
        refused(text)
        or f"{without_secrets(spelled_out(text))} is not on this machine: name a local path"
    )


def spellable(path: str | Path) -> str:
    """A path as a text; what no file can be called is refused.

    >>> spellable("a\\0b")
    Traceback (most recent call last):
    ...
    penstock.errors.ConfigError: 'a\\x00b': no file can have this name
    """
    text = str(path)
    with contextlib.suppress(UnicodeEncodeError):
        if b"\0" not in text.encode("utf-8", "surrogateescape"):
            return text
    raise ConfigError(f"{without_secrets(text)!r}: no file can have this name")


def open_name(path: str) -> str:
    """What a URL is called wherever it is told of: without a password, and without a query, which
    may be a signature. Of a user and of what else a query holds it has a digest, for they tell one
    object from another. A container's name before an @ stays, as Azure writes it, and so do
    GitHub's names of a repository.

    >>> open_name("https://host/x.jsonl?sig=secret&se=2026"), open_name("abfs://box@host/x")
    ('https://host/x.jsonl', 'abfs://box@host/x')
    >>> open_name("https://me:secret@host/x.jsonl?id=3&sig=secret"), open_name("github://org:repo@main/x")
    ('https://host/x.jsonl#~9b1560674f5423b6', 'github://org:repo@main/x')
    """
    path = spelled_out(path)
    links = [_open(link) for link in _LINK.split(without_digest(path))]
    hidden = [one for _, found in links for one in found]
    digest = hashlib.blake2b(
        "\0".join(hidden).encode("utf-8", "surrogatepass"), digest_size=8
    ).hexdigest()
    return "::".join(link for link, _ in links) + (
        f"#~{digest}" if hidden else path[len(without_digest(path)) :]
    )


def without_digest(name: str) -> str:
    """A name without the digest of what it does not tell.

    >>> without_digest("https://host/x.jsonl#~9b1560674f5423b6"), without_digest("s3://bucket/x#1")
    ('https://host/x.jsonl', 's3://bucket/x#1')
    """
    return _DIGEST.sub("", name)


def parted(name: str) -> tuple[str, str]:
    """A name without the digest of what it does not tell, and that digest.

    >>> parted("sftp://host/x.jsonl#~9b1560674f5423b6"), parted("s3://bucket/x#1")
    (('sftp://host/x.jsonl', '#~9b1560674f5423b6'), ('s3://bucket/x#1', ''))
    """
    bare = without_digest(name)
    return bare, name[len(bare) :]


def _open(link: str) -> tuple[str, list[str]]:
    """What may be told of one URL of a chain, and what else belongs to what it names."""
    head, colon, rest = link.partition("://")
    web, query = head.lower() in ("http", "https"), ""
    if web:
        rest, _, query = rest.partition("#")[0].partition("?")
    place, slash, key = rest.partition("/")
    user, at, host = place.rpartition("@")
    login = bool(at) and (web or (":" in user and head.lower() != "github"))
    hidden = [user.partition(":")[0]] if login else []
    return f"{head}{colon}{host if login else place}{slash}{key}", hidden + _unsigned(query)


def _unsigned(query: str) -> list[str]:
    """What of a query is no signature, which another run has another one of."""
    named = [(part.partition("=")[0].lower(), part) for part in query.split("&") if part]
    signed = any(name in ("sig", "signature") for name, _ in named)
    return [
        part for name, part in named if not (_SIGNS.fullmatch(name) or (signed and name in _BESIDE))
    ]


def refused(path: str) -> str:
    """Why a URL is not taken, since what is secret in it would be told or not be used: nothing
    where it is taken.

    >>> refused("abfs://box@host/x?sig=secret"), refused("s3://bucket/x?.jsonl")
    ('abfs://host/x: only http:// and https:// take a query (?...): give this process credentials instead', '')
    """
    for link in _LINK.split(spelled_out(path)):
        head, rest = [*re.split(":/+", link, maxsplit=1), ""][:2]  # a path has one slash there
        web, place = head.lower() in ("http", "https"), re.split("[/?#]", rest, maxsplit=1)[0]
        if web and not _PLACE.fullmatch(place.rpartition("@")[2]):
            return f"{head}://...: the host cannot be told: in a password, write %2F for /, %3F for ? and %23 for #"
        if not web and _QUERY.search(rest):
            return (
                f"{without_secrets(path)}: only http:// and https:// take a query (?...): give "
                "this process "
                "credentials instead"
            )
    return ""


_INSIDE = re.compile(r"[A-Za-z][\w+.-]*:/+(?:[^\s/@]*@)?[^\s'\"<>]*")


def redacted(text: str) -> str:
    """A text with the URLs in it as they may be told.

    >>> redacted("GET https://me:pw@host/x?sig=abc failed")
    'GET https://host/x failed'
    """
    return _INSIDE.sub(lambda found: without_secrets(found.group()), text)
