"""Breaks of the log: durable, once, in the tenant's own subject, and never later than it says."""

from tests.mutants.mutant import Mutant

_NAMING = "kernel/log/naming.py"
_APPENDING = "kernel/log/appending.py"

_ON_MEMORY = "tests/contract/test_log_contract.py::TestMemoryLog::"
_ON_JETSTREAM = "tests/contract/test_log_contract.py::TestJetStreamLog::"

_REFUSED = """
            raise LogUnavailable("not connected to the log")
        if max("""
_KEPT_FOR_LATER = """
            async def later() -> None:
                await self.wait_connected()
                self.publish(subject, payload, reply=reply, headers=headers, size=size)

            self._kept = asyncio.ensure_future(later())"""

OF_THE_LOG = (
    Mutant(
        name="an old entry known by its id counts as a sign that the log writes",
        promise="G9",
        file="kernel/log/silence.py",
        old="if not said.is_duplicate or said.seq > known_seq:",
        new="if True:",
        tests=("tests/unit/test_log_silence.py::test_an_old_entry_that_is_known_by_its_id_proves_no_write",),
    ),
    Mutant(
        name="a silence outlives the connection",
        promise="G9",
        file="kernel/log/connection.py",
        old="        self.silences.forget()\n",
        new="",
        tests=(
            "tests/integration/test_jetstream_write_failure.py::"
            "test_a_stream_that_could_not_write_is_silent_until_the_broker_is_restarted",
        ),
    ),
    Mutant(
        name="what is published while disconnected is kept and sent later",
        promise="G9",
        file="kernel/log/connection.py",
        old=_REFUSED,
        new=_KEPT_FOR_LATER + _REFUSED,
        tests=(_ON_JETSTREAM + "test_what_is_refused_in_an_outage_is_never_sent_later",),
    ),
    Mutant(
        name="an append that nobody acknowledged is called unavailable",
        promise="G9",
        file=_APPENDING,
        old='        if self.is_open:\n            return OutcomeUnknown(f"sent',
        new='        if self.is_open:\n            return LogUnavailable(f"sent',
        tests=(_ON_MEMORY + "test_an_unanswered_append_is_called_unknown_and_repeating_it_settles_it",),
    ),
    Mutant(
        name="an entry that is published twice is stored twice",
        promise="D2",
        file=_NAMING,
        old='ENTRY_ID_HEADER = "Nats-Msg-Id"',
        new='ENTRY_ID_HEADER = "Stepwell-Entry"',
        tests=(_ON_JETSTREAM + "test_a_repeated_id_is_stored_once_and_named_by_its_first_sequence",),
    ),
    Mutant(
        name="a full log drops its oldest entries",
        promise="G8",
        file="kernel/log/streams.py",
        old='discard="new"',
        new='discard="old"',
        tests=(_ON_JETSTREAM + "test_a_full_shard_refuses_keeps_what_it_has_and_takes_again",),
    ),
    Mutant(
        name="a subject is built without a tenant",
        promise="G7",
        file=_NAMING,
        old="if TENANT_ID.fullmatch(tenant) is None:",
        new="if False:",
        tests=("tests/unit/test_log_parts.py::test_a_subject_without_a_tenant_cannot_be_built",),
    ),
    Mutant(
        name="the log is written to the disk every two minutes",
        promise="G8",
        file="deploy/nats.conf",
        old="sync_interval: always",
        new='sync_interval: "2m"',
        tests=(
            "tests/integration/test_embedded_servers.py"
            "::test_the_log_is_synced_on_every_append_and_takes_entries_of_8_mib",
        ),
    ),
)
