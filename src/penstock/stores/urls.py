"""URLs without secrets, for errors, logs and states."""

from __future__ import annotations

import contextlib
import hashlib
import re
from pathlib import Path

from ..errors import ConfigError

_URL_PATTERN = re.compile(r"([A-Za-z][\w+.:-]+:/+)(?:[^/]*@)?([^?#]*).*", re.DOTALL)
_CHAIN_SEPARATOR = re.compile(
    r"::(?=(?:\w+::)*[A-Za-z][\w+.-]*:/)"
)  # between the URLs of a chain of fsspec's
_DIGEST_SUFFIX = re.compile(r"#~[0-9a-f]{16}$")
_SIGNATURE_PARAMETER = re.compile(
    r"x-(amz|goog)-.*|x-oss-(?!process).*|sig|signature|token|security-token|jsessionid"
)
_SIGNED_URL_PARAMETERS = (
    frozenset(  # other parameters of signed URLs of S3, CloudFront, Google, Alibaba and Azure
        "expires awsaccesskeyid googleaccessid ossaccesskeyid policy key-pair-id hash-algorithm "
        "sv se sp st sr ss srt spr sip skoid sktid skt ske sks skv saoid suoid scid sdd ses".split()
    )
)

_BEFORE_GLOB = re.compile(
    r"(?:[\w+.:-]+:/+(?:[^/]*@)?\[[\da-f:.]*:[\da-f:.]*(?:%[^]/]*)?\])?[^*?\[]*", re.IGNORECASE
)
_HOST_PATTERN = re.compile(r"(?:\[[^]]*\]|[^:]*)(?::\d*)?")
_QUERY_PATTERN = re.compile(r"\?[\w.~%-]+=")
_PARAMETERS = re.compile(r";[\w.~%-]+=[^/?#]*")  # of a segment of a web path: ;jsessionid=...
_OF_BUCKETS = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "azure")


def is_url(path: str) -> bool:
    """Return whether a path is a URL, also if `pathlib` removed a slash.

    >>> is_url("s3://bucket/x"), is_url("https:/host/x"), is_url("c:/x"), is_url("a/b")
    (True, True, False, False)
    """
    return bool(_URL_PATTERN.match(path))


def strip_secrets(path: str) -> str:
    """Remove user, password, query, fragment and parameters from a URL; paths are unchanged.

    >>> strip_secrets("https://me:secret@host/x.jsonl?token=secret"), strip_secrets("a/b?.jsonl")
    ('https://host/x.jsonl', 'a/b?.jsonl')
    >>> strip_secrets("https://host/x.jsonl;jsessionid=secret")
    'https://host/x.jsonl'
    """
    public = _URL_PATTERN.sub(r"\1\2", path)
    is_web = get_scheme(path).rpartition(":")[2] in ("http", "https")
    return _PARAMETERS.sub("", public) if is_web else public


def restore_slashes(path: str) -> str:
    """Restore the second slash of a URL if `pathlib` removed it.

    >>> restore_slashes("s3:/bucket/x"), restore_slashes("memory://x"), restore_slashes("file:///x")
    ('s3://bucket/x', 'memory://x', 'file:///x')
    """
    scheme, _, rest = path.removesuffix(":").partition(":/")
    return f"{scheme}://{rest.removeprefix('/')}"


def get_scheme(path: str) -> str:
    """Return the lower-case scheme of a URL.

    >>> get_scheme("S3://bucket/x"), get_scheme("simplecache::s3://bucket/x")
    ('s3', 'simplecache::s3')
    """
    return path.partition(":/")[0].lower()


def get_glob_prefix(path: str) -> str:
    """Return the part before the first wildcard; brackets of an IPv6 address are no wildcard.

    >>> get_glob_prefix("a/b-[0-9].txt"), get_glob_prefix("http://[::1]:80/x"), get_glob_prefix("s3://[ab]/x")
    ('a/b-', 'http://[::1]:80/x', 's3://')
    """
    match = _BEFORE_GLOB.match(path)
    return match[0] if match else ""


def is_glob(path: str) -> bool:
    """Return whether a path has a wildcard."""
    return get_glob_prefix(path) != path


def require_local(path: str | Path) -> Path:
    """Return a user's path on this machine; raise `ConfigError` for URLs of stores.

    Output is written to local paths only. A relative path that looks like a URL (a folder named
    `s3:`) becomes absolute, so that it stays a path.

    >>> require_local("file:///a/b"), require_local("a/b")
    (PosixPath('/a/b'), PosixPath('a/b'))
    """
    text = require_encodable_path(path)
    if not is_url(text):
        try:
            expanded = Path(path).expanduser()
        except RuntimeError as error:
            raise ConfigError(f"{text}: {error} Write the path without ~, or set HOME") from None
        return expanded.absolute() if is_url(f"{expanded}/") else expanded
    if get_scheme(text) in ("file", "local"):
        return Path("/" + restore_slashes(text).split("://", 1)[1].lstrip("/"))
    raise ConfigError(
        find_url_problem(text)
        or f"{strip_secrets(restore_slashes(text))} is not on this machine: name a local path"
    )


def require_encodable_path(path: str | Path) -> str:
    """Return a path as text; raise `ConfigError` if it is no valid file name.

    >>> require_encodable_path("a\\0b")
    Traceback (most recent call last):
    ...
    penstock.errors.ConfigError: 'a\\x00b': no file can have this name
    """
    text = str(path)
    with contextlib.suppress(UnicodeEncodeError):
        if b"\0" not in text.encode("utf-8", "surrogateescape"):
            return text
    raise ConfigError(f"{strip_secrets(text)!r}: no file can have this name")


def make_public_name(path: str) -> str:
    """Return the public name of a URL, without password, query and parameters.

    A query may be a signature. The user and the rest of the query, which identify the object, are
    replaced by a digest. The name of an Azure container, or of a GitHub repository, before an @
    stays.

    >>> make_public_name("https://host/x.jsonl?sig=secret&se=2026"), make_public_name("abfs://box@host/x")
    ('https://host/x.jsonl', 'abfs://box@host/x')
    >>> make_public_name("https://me:secret@host/x.jsonl?id=3&sig=secret"), make_public_name("github://org:repo@main/x")
    ('https://host/x.jsonl#~9b1560674f5423b6', 'github://org:repo@main/x')
    """
    path = restore_slashes(path)
    links = [_split_secrets(link) for link in _CHAIN_SEPARATOR.split(strip_digest(path))]
    hidden = [part for _, parts in links for part in parts]
    digest = hashlib.blake2b(
        "\0".join(hidden).encode("utf-8", "surrogatepass"), digest_size=8
    ).hexdigest()
    return "::".join(link for link, _ in links) + (
        f"#~{digest}" if hidden else path[len(strip_digest(path)) :]
    )


def strip_digest(name: str) -> str:
    """Remove the digest of hidden parts from a public name.

    >>> strip_digest("https://host/x.jsonl#~9b1560674f5423b6"), strip_digest("s3://bucket/x#1")
    ('https://host/x.jsonl', 's3://bucket/x#1')
    """
    return _DIGEST_SUFFIX.sub("", name)


def split_digest(name: str) -> tuple[str, str]:
    """Split a public name into the name and the digest of its hidden parts.

    >>> split_digest("sftp://host/x.jsonl#~9b1560674f5423b6"), split_digest("s3://bucket/x#1")
    (('sftp://host/x.jsonl', '#~9b1560674f5423b6'), ('s3://bucket/x#1', ''))
    """
    bare = strip_digest(name)
    return bare, name[len(bare) :]


def _split_secrets(link: str) -> tuple[str, list[str]]:
    """Return the public part of one URL of a chain, and the hidden parts of its identity."""
    head, colon, rest = link.partition("://")
    web, query = head.lower() in ("http", "https"), ""
    if web:
        rest, _, query = rest.partition("#")[0].partition("?")
    place, slash, key = rest.partition("/")
    if web:
        query += "".join(f"&{part[1:]}" for part in _PARAMETERS.findall(key)).replace(";", "&")
        key = _PARAMETERS.sub("", key)
    user, at, host = place.rpartition("@")
    login = bool(at) and (web or (":" in user and head.lower() != "github"))
    hidden = [user.partition(":")[0]] if login else []
    return f"{head}{colon}{host if login else place}{slash}{key}", hidden + _drop_signatures(query)


def _drop_signatures(query: str) -> list[str]:
    """Return the parameters of a query that are no signature; signatures differ between runs."""
    named = [(part.partition("=")[0].lower(), part) for part in query.split("&") if part]
    signed = any(name in ("sig", "signature") for name, _ in named)
    return [
        part
        for name, part in named
        if not (_SIGNATURE_PARAMETER.fullmatch(name) or (signed and name in _SIGNED_URL_PARAMETERS))
    ]


def find_url_problem(path: str) -> str:
    """Return the reason to reject a URL with unusable or leaking secrets; empty if it is valid.

    >>> find_url_problem("abfs://box@host/x?sig=secret"), find_url_problem("s3://bucket/x?.jsonl")
    ('abfs://host/x: only http:// and https:// take a query (?...): give this process credentials instead', '')
    """
    for link in _CHAIN_SEPARATOR.split(restore_slashes(path)):
        head, rest = [*re.split(":/+", link, maxsplit=1), ""][:2]  # a path has one slash there
        web, place = head.lower() in ("http", "https"), re.split("[/?#]", rest, maxsplit=1)[0]
        if web and not _HOST_PATTERN.fullmatch(place.rpartition("@")[2]):
            return f"{head}://...: the host is ambiguous: in a password, write %2F for /, %3F for ? and %23 for #"
        below = link.partition(":/")[2].removeprefix("/")
        if head.lower() in _OF_BUCKETS and (not below or below.startswith("/")):
            return f"{strip_secrets(link)}: it names no bucket: write {head}://BUCKET/NAME"
        if not web and _QUERY_PATTERN.search(rest):
            return (
                f"{strip_secrets(path)}: only http:// and https:// take a query (?...): give "
                "this process credentials instead"
            )
    return ""


_EMBEDDED_URL = re.compile(r"[A-Za-z][\w+.-]*:/+(?:[^\s/@]*@)?[^\s'\"<>]*")


def redact_urls(text: str) -> str:
    """Remove secrets from the URLs in a text.

    >>> redact_urls("GET https://me:pw@host/x?sig=abc failed")
    'GET https://host/x failed'
    """
    return _EMBEDDED_URL.sub(lambda match: strip_secrets(match.group()), text)
