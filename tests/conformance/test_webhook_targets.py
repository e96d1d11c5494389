"""K78: which addresses a webhook may have, at registration and again at every send."""

import os
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio

from tests.conformance.harness.agent import Agent
from tests.conformance.harness.answers import accepted, path_of
from tests.conformance.harness.endpoint import Endpoint, accepting
from tests.conformance.harness.kernel import Kernel, connected
from tests.conformance.harness.stacks import LEASE_SECONDS, SETTINGS, Stacks
from tests.support.peers import peer
from tests.support.stack import ROOT, Stack

NETWORKS = "STEPWELL_WEBHOOK_ALLOW_NETWORKS"
LISTED = "127.0.0.1/32,10.0.0.0/8,169.254.0.0/16,100.64.0.0/10,fd00::/8"
NAMES = ROOT / "tests" / "conformance" / "harness" / "names"

LOOPBACK = ["127.0.0.1", "127.8.8.8", "[::1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "2130706433", "localhost"]
PRIVATE = ["10.0.0.5", "10.255.255.255", "172.16.0.1", "192.168.1.1", "[::ffff:10.0.0.5]", "[fd00::1]", "100.64.0.1"]
OTHERS = ["0.0.0.0", "[::]", "169.254.1.1", "[fe80::1]", "224.0.0.1", "[ff02::1]", "[64:ff9b::7f00:1]"]
METADATA = [
    *("169.254.169.254", "169.254.170.2", "169.254.170.23", "100.100.100.200"),
    *("[::ffff:169.254.169.254]", "[fd00:ec2::254]", "[fd00:ec2::23]", "[fd20:ce::254]"),
]
NO_TARGETS = [
    *("ftp://8.8.4.4/hook", "file:///etc/passwd", "//8.8.4.4/hook", "8.8.4.4/hook", "http:///hook", ""),
    *("http://user@8.8.4.4/", "http://user:password@8.8.4.4/", "https://:password@8.8.4.4/", "http://@8.8.4.4/"),
]


@pytest_asyncio.fixture
async def strict(stacks: Stacks) -> AsyncIterator[Kernel]:
    """A kernel in server mode whose operator lists no network."""
    stack = stacks.get(STEPWELL_WEBHOOK_ALLOW_NETWORKS="")
    async with connected(stack.url, stack.api_key) as kernel:
        yield kernel


class Names:
    """What names resolve to for those who send in the processes of a stack; at registration they do not resolve."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def turn(self, **addresses: str) -> None:
        """From now on these are the names there are, with these addresses."""
        new = self.path.with_suffix(".new")
        new.write_text("".join(f"{name} {address}\n" for name, address in addresses.items()))
        new.replace(self.path)


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Names:
    found = Names(tmp_path_factory.mktemp("names") / "names")
    found.turn()
    return found


@pytest.fixture(scope="module")
def listing_stack(names: Names) -> Iterator[Stack]:
    """A kernel in server mode whose operator lists some networks, metadata addresses among them."""
    paths = os.pathsep.join([str(NAMES), str(ROOT)])
    settings = SETTINGS | {NETWORKS: LISTED, "PYTHONPATH": paths, "NAMES_FILE": str(names.path)}
    with Stack.start(lease_seconds=LEASE_SECONDS, settings=settings) as stack:
        yield stack


@pytest_asyncio.fixture
async def listing(listing_stack: Stack) -> AsyncIterator[Kernel]:
    async with connected(listing_stack.url, listing_stack.api_key) as kernel:
        yield kernel


def _body(url: str) -> dict[str, str]:
    return {"id": f"agent-{secrets.token_hex(6)}", "webhook_url": url, "secret": secrets.token_hex(16)}


async def _assert_refused(kernel: Kernel, url: str) -> None:
    body = _body(url)

    assert path_of(await kernel.post("/v0/agents", body)) == "webhook_url"

    assert (await kernel.get(f"/v0/agents/{body['id']}")).status_code == 404


async def _named(kernel: Kernel, host: str, port: int) -> Agent:
    """An agent that is registered under a name."""
    body = _body(f"http://{host}:{port}/webhook")
    accepted(await kernel.post("/v0/agents", body), 201)
    return Agent(kernel, Endpoint(accepting), agent_id=body["id"], secret=body["secret"], scheme="v1")


async def _reason(kernel: Kernel, execution_id: str) -> tuple[str, int]:
    """Why the first delivery failed, and the number of its attempt."""
    payload = (await kernel.wait_for_event(execution_id, "dispatch.failed"))["payload"]
    return payload["reason"], payload["attempt"]


# ---------------------------------------------------------------- registration


@pytest.mark.parametrize("host", [*LOOPBACK, *PRIVATE, *OTHERS, *METADATA])
async def test_k78_an_address_that_is_not_everybodys_is_refused(strict: Kernel, host: str) -> None:
    await _assert_refused(strict, f"http://{host}:8080/hook")


@pytest.mark.parametrize("url", NO_TARGETS)
async def test_k78_another_scheme_or_user_info_is_refused(strict: Kernel, url: str) -> None:
    await _assert_refused(strict, url)


async def test_k78_a_refused_address_does_not_replace_the_one_that_is_registered(strict: Kernel) -> None:
    body = _body("http://8.8.4.4/hook")
    accepted(await strict.post("/v0/agents", body), 201)

    changed = await strict.post("/v0/agents", body | {"webhook_url": "http://169.254.169.254/latest"})

    assert path_of(changed) == "webhook_url"
    assert accepted(await strict.get(f"/v0/agents/{body['id']}"))["webhook_url"] == "http://8.8.4.4/hook"


@pytest.mark.parametrize("url", ["http://8.8.4.4/hook", "https://[2001:4860:4860::8888]:8443/hook?x=1"])
async def test_k78_an_address_that_is_everybodys_is_accepted(strict: Kernel, url: str) -> None:
    assert accepted(await strict.post("/v0/agents", _body(url)), 201)["webhook_url"] == url


@pytest.mark.parametrize("host", ["127.0.0.1", "[::ffff:127.0.0.1]", "10.1.2.3", "169.254.1.1", "[fd12::1]"])
async def test_k78_a_network_that_is_listed_is_accepted(listing: Kernel, host: str) -> None:
    accepted(await listing.post("/v0/agents", _body(f"http://{host}:8080/hook")), 201)


@pytest.mark.parametrize("host", ["127.0.0.2", "[::1]", "192.168.1.1", "172.16.0.1"])
async def test_k78_beside_the_list_all_is_refused_as_ever(listing: Kernel, host: str) -> None:
    await _assert_refused(listing, f"http://{host}:8080/hook")


@pytest.mark.parametrize("host", METADATA)
async def test_k78_a_metadata_address_is_refused_though_its_network_is_listed(listing: Kernel, host: str) -> None:
    await _assert_refused(listing, f"http://{host}/latest/meta-data")


async def test_k78_a_name_that_does_not_resolve_yet_is_accepted(strict: Kernel) -> None:
    accepted(await strict.post("/v0/agents", _body("http://agent.invalid/hook")), 201)


# ---------------------------------------------------------------- at send


async def test_k78_a_name_that_turns_to_a_refused_address_is_not_contacted(listing: Kernel, names: Names) -> None:
    first = socket.create_server(("127.0.0.1", 0))
    port = first.getsockname()[1]
    # The same port of an address that the list does not hold.
    second = socket.create_server(("127.0.0.2", port))
    endpoint = Endpoint(accepting)
    async with AsyncExitStack() as serving:
        allowed = await serving.enter_async_context(peer(endpoint.serve, bound=first))
        refused = await serving.enter_async_context(peer(endpoint.serve, bound=second))
        names.turn(**{"agent.test": "127.0.0.1"})
        agent = await _named(listing, "agent.test", port)
        before = await agent.create()
        await listing.wait_for_event(before["id"], "dispatch.acked")
        contacts = len(allowed.connections)

        names.turn(**{"agent.test": "127.0.0.2"})
        execution = await agent.create()

        assert await _reason(listing, execution["id"]) == ("unreachable", 1)
        assert (len(allowed.connections), len(refused.connections)) == (contacts, 0)
        # Nothing else was wrong with it, and no attempt was used up.
        names.turn(**{"agent.test": "127.0.0.1"})
        acked = await listing.wait_for_event(execution["id"], "dispatch.acked")
        assert acked["payload"]["attempt"] == 1
        assert refused.connections == []


async def test_k78_a_name_that_turns_to_a_metadata_address_is_unreachable(listing: Kernel, names: Names) -> None:
    names.turn(**{"agent.test": "127.0.0.1"})
    agent = await _named(listing, "agent.test", 80)

    names.turn(**{"agent.test": "169.254.169.254"})
    execution = await agent.create()

    assert await _reason(listing, execution["id"]) == ("unreachable", 1)


async def test_k78_the_dispatcher_resolves_and_judges_for_itself(new_stack: Callable[..., Stack]) -> None:
    """By the machine's own resolver: what the door accepted is no permission to send."""
    stack = new_stack(processes="apart", lease_seconds=LEASE_SECONDS, settings=SETTINGS)
    stack.process("dispatcher").unset(NETWORKS)
    stack.restart("dispatcher")
    endpoint = Endpoint(accepting)
    async with connected(stack.url, stack.api_key) as kernel, peer(endpoint.serve) as server:
        agents = [await _named(kernel, host, server.port) for host in ("localhost", "127.0.0.1", "2130706433")]

        executions = [await agent.create() for agent in agents]

        for execution in executions:
            assert await _reason(kernel, execution["id"]) == ("unreachable", 1)
        assert server.connections == []
