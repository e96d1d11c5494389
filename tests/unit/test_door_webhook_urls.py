"""Which webhook URLs may be registered."""

from ipaddress import ip_network

import pytest

from kernel.domain.errors import Invalid
from kernel.door.webhook_urls import check_webhook_url

LOOPBACK = (ip_network("127.0.0.0/8"), ip_network("::1/128"))
EVERYTHING = (ip_network("0.0.0.0/0"), ip_network("::/0"))


@pytest.mark.parametrize(
    "url",
    [
        "",
        "example.com/hook",
        "//example.com/hook",
        "ftp://example.com/",
        "file:///etc/passwd",
        "http://",
        "http:///hook",
        "https://:443/",
        "http://user@example.com/",
        "http://user:pass@example.com/",
        "http://@example.com/",
        "http://example.com:0/",
        "http://example.com:65536/",
        "http://example.com:x/",
        "http://[::1/",
        "http://exa mple.com/",
        "http://example.com/\n",
        "http://example.com/\x00",
        "http://exämple.com/",
        "http:\\\\example.com/",
        "http://example.com/" + "a" * 2048,
        "gopher://127.0.0.1/",
    ],
)
async def test_a_url_that_is_no_plain_http_target_is_refused(url: str) -> None:
    with pytest.raises(Invalid) as refused:
        await check_webhook_url(url, EVERYTHING)
    assert refused.value.path == "webhook_url"


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:6379/",
        "http://10.0.0.5/",
        "http://[::1]/",
        "http://[::ffff:127.0.0.1]/",
        "http://[fe80::1%25eth0]/",
        "https://169.254.169.254/",
        "http://0.0.0.0/",
        "http://0/",
        "http://2130706433/",
        "http://0x7f.1/",
        "http://localhost/",
        "http://localhost./",
    ],
)
async def test_a_host_that_is_not_reachable_for_everybody_is_refused(url: str) -> None:
    with pytest.raises(Invalid) as refused:
        await check_webhook_url(url, ())
    assert refused.value.path == "webhook_url"


@pytest.mark.parametrize("url", ["http://127.0.0.1:8080/hook?x=1", "http://[::1]:80/", "http://localhost/a"])
async def test_a_network_of_the_operator_opens_its_addresses(url: str) -> None:
    await check_webhook_url(url, LOOPBACK)


async def test_no_network_opens_a_metadata_address() -> None:
    with pytest.raises(Invalid):
        await check_webhook_url("http://169.254.169.254/", EVERYTHING)


@pytest.mark.parametrize(
    "url", ["http://agents.invalid/hook", "https://8.8.8.8/hook", "http://" + "a" * 70 + ".invalid/"]
)
async def test_a_public_address_and_a_name_that_does_not_resolve_are_accepted(url: str) -> None:
    await check_webhook_url(url, ())


async def test_a_url_of_2048_bytes_is_accepted() -> None:
    url = "http://8.8.8.8/"
    await check_webhook_url(url + "a" * (2048 - len(url)), ())
