"""Network addresses that a redirect must not reach: local networks and metadata services."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

# Link-local and site-local addresses, and those that hand out credentials: AWS, Oracle, Alibaba,
# Azure, Google, Scaleway.
_METADATA_NETWORKS = tuple(
    ip_network(address)
    for address in (
        "169.254.0.0/16",
        "fe80::/10",
        "fec0::/10",
        "fd00:ec2::/32",
        "fd00:c1::a9fe:a9fe",
        "fd00:42::42",
        "192.0.0.192",
        "100.100.100.200",
        "168.63.129.16",
        "fd20:ce::254",
    )
)
_METADATA_NAMES = (
    "metadata.google.internal",
    "metadata.goog",
    "metadata.tencentyun.com",
    "metadata.azure.internal",
    "instance-data",
    "instance-data.ec2.internal",
)
_NAT64_LOCAL = ip_network("64:ff9b:1::/48")
_ENDS_IN_IPV4 = tuple(
    map(ip_network, ("::/96", "64:ff9b::/96", "::ffff:0:0:0/96", "64:ff9b:1::/48"))
)
_ISATAP_IDENTIFIERS = (0x00005EFE, 0x02005EFE)


def is_blocked(address: str, inside: bool) -> bool:
    """Return whether the client refuses to follow a redirect to this host.

    Args:
        address: an IP address, or a name that is not resolved yet.
        inside: whether the redirecting server is itself in a local network.

    >>> is_blocked("10.0.0.1", inside=False), is_blocked("10.0.0.1", inside=True)
    (True, False)
    >>> is_blocked("169.254.169.254", inside=True), is_blocked("64:ff9b::a9fe:a9fe", inside=True)
    (True, True)
    """
    with suppress(ValueError):
        parsed = ip_address(address.partition("%")[0])
        candidates = [parsed, *_extract_ipv4_addresses(parsed)]
        if any(candidate in network for candidate in candidates for network in _METADATA_NETWORKS):
            return True
        return not inside and not all(candidate.is_global for candidate in candidates)
    return address.lower().rstrip(".") in _METADATA_NAMES


def _extract_ipv4_addresses(address: IPv4Address | IPv6Address) -> Iterator[IPv4Address]:
    """Yield the IPv4 addresses that a gateway may extract from an IPv6 address."""
    if isinstance(address, IPv4Address):
        return
    packed = address.packed
    if address.ipv4_mapped:
        yield address.ipv4_mapped
    if address.sixtofour:
        yield address.sixtofour
    if address.teredo:
        yield from address.teredo
    if any(address in network for network in _ENDS_IN_IPV4) and int(address) > 1:
        yield IPv4Address(packed[12:])
    if address in _NAT64_LOCAL:  # RFC 6052: around the reserved byte 8
        yield IPv4Address(packed[6:8] + packed[9:11])
        yield IPv4Address(packed[7:8] + packed[9:12])
        yield IPv4Address(packed[9:13])
    if int.from_bytes(packed[8:12]) in _ISATAP_IDENTIFIERS:
        yield IPv4Address(packed[12:])
