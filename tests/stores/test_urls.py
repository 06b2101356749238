"""Names of URLs contain no secrets, and two objects never share a name."""

from __future__ import annotations

import pytest

from penstock.stores.urls import make_public_name

SIGNED = {
    "aws": "X-Amz-Algorithm=A&X-Amz-Credential={0}&X-Amz-Date={0}&X-Amz-Expires=9&X-Amz-Signature={0}",
    "aws, the old way": "AWSAccessKeyId={0}&Expires={0}&Signature={0}",
    "google": "X-Goog-Credential={0}&X-Goog-Date={0}&X-Goog-Signature={0}",
    "cloudfront": "Expires={0}&Policy={0}&Signature={0}&Key-Pair-Id={0}",
    "azure": "sv={0}&st={0}&se={0}&sr=b&sp=r&sig={0}",
    "alibaba": "OSSAccessKeyId={0}&Expires={0}&Signature={0}",
    "token": "token={0}",
}


@pytest.mark.parametrize("kind", SIGNED)
def test_signatures_are_no_part_of_a_name(kind: str) -> None:
    one, other = (SIGNED[kind].format(text) for text in ("kanarie", "uccello"))
    assert (
        make_public_name(f"https://h/x?{one}")
        == make_public_name(f"https://h/x?{other}")
        == "https://h/x"
    )
    version = {
        make_public_name(f"https://h/x?versionId={n}&{query}")
        for n in (1, 2)
        for query in (one, other)
    }
    assert len(version) == 2 and not any("kanarie" in name for name in version)


@pytest.mark.parametrize(
    "urls",
    [
        [
            "http://h/f?id=1",
            "http://h/f?id=2",
            "http://h/f",
            "http://h/f?se=1",
            "http://h/f?Expires=3",
        ],
        ["http://one:pw@h/f", "http://two:pw@h/f", "http://h/f"],
        ["github://org:a@main/f", "github://org:b@main/f", "github://org:a@dev/f"],
        ["sftp://one:pw@h/f", "sftp://two:pw@h/f", "sftp://h/f"],
        ["zip://f::http://h/a.zip?id=1", "zip://f::http://h/a.zip?id=2"],
    ],
)
def test_no_two_objects_are_called_alike(urls: list[str]) -> None:
    names = [make_public_name(url) for url in urls]
    assert len({*names}) == len(urls) and [*map(make_public_name, names)] == names
    assert not any("?" in name or "pw" in name for name in names)


def test_a_chain_has_secrets_in_each_link() -> None:
    assert make_public_name("simplecache::https://h/x?sig=a") == "simplecache::https://h/x"
    assert "pw" not in make_public_name("zip://f::simplecache::https://me:pw@h/x?sig=pw")
