"""Redirects do not reach local networks or the metadata services of clouds, however the address is written."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.stores.addresses import is_blocked

METADATA = (
    "169.254.169.254",
    "192.0.0.192",
    "100.100.100.200",
    "168.63.129.16",
    "fd00:ec2::254",
    "fd20:ce::254",
    "fd00:c1::a9fe:a9fe",
    "fd00:42::42",
    "fec0::1",
    "fe80::1%eth0",
    "metadata.google.internal",
    "Metadata.Google.Internal.",
)


def embeddings(address: IPv4Address) -> dict[str, str]:
    """The ways to write an IPv4 address into one of IPv6."""
    v4, number = address.packed, int(address)
    return {
        "mapped": str(IPv6Address((0xFFFF << 32) | number)),
        "compatible": str(IPv6Address(number)),
        "translated": str(IPv6Address((0xFFFF << 48) | number)),
        "NAT64": str(IPv6Address((0x64FF9B << 96) | number)),
        "local NAT64": str(IPv6Address((0x64FF9B0001 << 80) | number)),
        "local NAT64 of /48": str(
            IPv6Address(bytes.fromhex("0064ff9b0001") + v4[:2] + b"\0" + v4[2:] + bytes(5))
        ),
        "6to4": str(IPv6Address(bytes.fromhex("2002") + v4 + bytes(10))),
        "Teredo": str(
            IPv6Address(bytes.fromhex("200100004136e378") + bytes(4) + bytes(255 - b for b in v4))
        ),
        "ISATAP": str(
            IPv6Address(bytes.fromhex("2001470000000000") + bytes.fromhex("00005efe") + v4)
        ),
    }


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("address", METADATA)
def test_a_metadata_service_is_never_reached(address: str, inside: bool) -> None:
    assert is_blocked(address, inside)


@given(st.ip_addresses(v=4).filter(lambda address: not address.is_global))
def test_a_local_address_is_blocked_in_every_embedding(address: IPv4Address) -> None:
    assert is_blocked(str(address), inside=False)
    if int(address) > 1:
        for name, written in embeddings(address).items():
            assert is_blocked(written, inside=False), name


@pytest.mark.parametrize("address", [address for address in METADATA if address[0].isdecimal()])
def test_a_metadata_service_is_blocked_in_every_embedding(address: str) -> None:
    for name, written in embeddings(IPv4Address(address)).items():
        assert is_blocked(written, inside=True), name


def test_public_addresses_and_names_are_reached() -> None:
    for address in (
        "8.8.8.8",
        "2606:4700::1111",
        "64:ff9b::808:808",
        "2002:808:808::",
        "example.com",
    ):
        assert not is_blocked(address, inside=False), address
    for address in ("127.0.0.1", "::1", "10.1.2.3", "fd12::1"):
        assert not is_blocked(address, inside=True), address
