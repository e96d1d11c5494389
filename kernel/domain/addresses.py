"""Which addresses a webhook may reach. The answer holds for the address that is connected to, never for a name."""

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

LOOPBACK_NETWORKS: tuple[Network, ...] = (ip_network("127.0.0.0/8"), ip_network("::1/128"))
"""What dev allows."""

METADATA_ADDRESSES: frozenset[Address] = frozenset(
    ip_address(text)
    for text in (
        "169.254.169.254",
        "169.254.170.2",
        "169.254.170.23",
        "100.100.100.200",
        "fd00:ec2::254",
        "fd00:ec2::23",
        "fd20:ce::254",
    )
)
_NAT64 = IPv6Network("64:ff9b::/96")
_IPV4_MASK = 0xFFFF_FFFF
_TUNNELS = tuple(IPv6Network(text) for text in ("::/96", "64:ff9b:1::/48", "2001::/32", "2002::/16"))
"""Ranges that carry an IPv4 address through some router nobody here chose."""


def refusal(address: str | Address, allowed_networks: Sequence[Network]) -> str | None:
    """Return why a webhook may not reach the address, None where it may.

    Everything that is not globally reachable is refused unless a network of the operator's list holds it; a metadata
    address is refused whatever the list says. IPv6 spellings of an IPv4 address are judged as that address.
    """
    try:
        found = _judged(ip_address(address) if isinstance(address, str) else address)
    except ValueError:
        return "not an address"
    if found in METADATA_ADDRESSES:
        return "a metadata address"
    if any(found.version == network.version and found in network for network in allowed_networks):
        return None
    return _kind(found)


def _judged(address: Address) -> Address:
    """Return the address that packets go to: without a zone, IPv4 where IPv6 is only its spelling."""
    if isinstance(address, IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address in _NAT64:
        return IPv4Address(int(address) & _IPV4_MASK)
    return IPv6Address(int(address))


def _kind(address: Address) -> str | None:
    if address.is_unspecified:
        return "an unspecified address"
    if address.is_loopback:
        return "a loopback address"
    if address.is_link_local:
        return "a link-local address"
    if address.is_multicast:
        return "a multicast address"
    if isinstance(address, IPv6Address) and (address.is_site_local or any(address in tunnel for tunnel in _TUNNELS)):
        return "a private address"
    return None if address.is_global else "a private address"
