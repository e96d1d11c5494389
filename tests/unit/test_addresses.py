"""Which addresses a webhook may reach."""

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel.domain.addresses import LOOPBACK_NETWORKS, METADATA_ADDRESSES, refusal

EVERYTHING = (ip_network("0.0.0.0/0"), ip_network("::/0"))


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "1.1.1.1", "2606:4700::1111", "2606:4700::1111%eth0", "::ffff:8.8.8.8", "64:ff9b::808:808"]
)
def test_a_public_address_is_reached(address: str) -> None:
    assert refusal(address, ()) is None


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("127.0.0.1", "a loopback address"),
        ("127.255.255.254", "a loopback address"),
        ("::1", "a loopback address"),
        ("::ffff:127.0.0.1", "a loopback address"),
        ("::ffff:7f00:1", "a loopback address"),
        ("64:ff9b::7f00:1", "a loopback address"),
        ("10.0.0.5", "a private address"),
        ("172.16.0.1", "a private address"),
        ("192.168.1.1", "a private address"),
        ("100.64.0.1", "a private address"),
        ("192.0.2.1", "a private address"),
        ("240.0.0.1", "a private address"),
        ("255.255.255.255", "a private address"),
        ("fd12:3456::1", "a private address"),
        ("fec0::1", "a private address"),
        ("2001:db8::1", "a private address"),
        ("2001::1", "a private address"),
        ("2002:7f00:1::", "a private address"),
        ("64:ff9b:1::1", "a private address"),
        ("::127.0.0.1", "a private address"),
        ("::ffff:10.0.0.1", "a private address"),
        ("169.254.0.1", "a link-local address"),
        ("fe80::1", "a link-local address"),
        ("fe80::1%eth0", "a link-local address"),
        ("224.0.0.1", "a multicast address"),
        ("ff02::1", "a multicast address"),
        ("0.0.0.0", "an unspecified address"),
        ("::", "an unspecified address"),
        ("::ffff:0.0.0.0", "an unspecified address"),
        ("localhost", "not an address"),
        ("127.1", "not an address"),
        ("", "not an address"),
    ],
)
def test_an_address_inside_is_refused_with_its_reason(address: str, why: str) -> None:
    assert refusal(address, ()) == why


def test_every_metadata_address_of_the_contract_is_known() -> None:
    assert {str(address) for address in METADATA_ADDRESSES} == {
        "169.254.169.254",
        "169.254.170.2",
        "169.254.170.23",
        "100.100.100.200",
        "fd00:ec2::254",
        "fd00:ec2::23",
        "fd20:ce::254",
    }


@pytest.mark.parametrize("address", sorted(str(address) for address in METADATA_ADDRESSES))
def test_no_list_allows_a_metadata_address(address: str) -> None:
    host = ip_network(address)

    assert refusal(address, (host, *EVERYTHING)) == "a metadata address"


@pytest.mark.parametrize("address", ["::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "fd00:ec2::254%1"])
def test_no_spelling_hides_a_metadata_address(address: str) -> None:
    assert refusal(address, EVERYTHING) == "a metadata address"


def test_a_listed_network_is_reached_and_its_neighbour_is_not() -> None:
    allowed = (ip_network("10.1.0.0/16"), ip_network("fd00:1::/32"))

    assert refusal("10.1.2.3", allowed) is None
    assert refusal("::ffff:10.1.2.3", allowed) is None
    assert refusal("fd00:1::5", allowed) is None
    assert refusal("10.2.0.1", allowed) == "a private address"
    assert refusal("fd00:2::5", allowed) == "a private address"


def test_dev_reaches_loopback_and_nothing_else_inside() -> None:
    assert refusal("127.0.0.1", LOOPBACK_NETWORKS) is None
    assert refusal("::1", LOOPBACK_NETWORKS) is None
    assert refusal("192.168.0.1", LOOPBACK_NETWORKS) == "a private address"


@given(st.ip_addresses(v=4))
def test_an_ipv4_address_is_judged_alike_in_both_spellings(address: IPv4Address) -> None:
    mapped = IPv6Address(f"::ffff:{address}")

    assert refusal(mapped, ()) == refusal(address, ())
    assert refusal(str(mapped), LOOPBACK_NETWORKS) == refusal(str(address), LOOPBACK_NETWORKS)


@given(st.ip_addresses())
def test_an_address_object_is_judged_as_its_text(address: IPv4Address | IPv6Address) -> None:
    assert refusal(address, ()) == refusal(str(address), ())
    assert ip_address(str(address)) == address
