"""What FLARE's processes are asked to do, and which of it they do in a federation."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("nvflare")
from nvflare.apis.fl_context import FLContext
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.core_cell import Message as CellMessage
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey
from nvflare.fuel.hci.conn import Connection
from nvflare.fuel.hci.server.reg import ServerCommandRegister
from nvflare.fuel.sec.audit import Auditor, AuditService
from nvflare.private.admin_defs import Message
from nvflare.private.fed.client.admin import FedAdminAgent
from nvflare.private.fed.client.admin_commands import AdminCommands
from nvflare.private.fed.client.client_engine import ClientEngine
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors
from nvflare.private.fed.server.server_cmd_modules import ServerCommandModules

from isthmus.deploy import commands
from isthmus.deploy.requests import COMMANDS, JOB_TOPICS, guard_commands, guard_requests, is_answered, objection

JOB = "0cdfecd2-812a-4a87-8a34-52472cca1a3a"
OTHER = "6d337c4e-46c4-4ae1-a406-466982b7f7d1"
KNOWN_TOPICS = JOB_TOPICS | {
    "info.reset_errors", "info.show_errors", "info.show_stats", "resource_manager.report_resources",
    "sys.configure_site_log", "sys.info", "sys.report_env", "sys.report_version", "sys.shell", "train.abort_task",
    "train.check_status", "train.configure_job_log", "train.delete_run", "train.get_scopes", "train.restart",
    "train.shutdown",
}  # fmt: skip
"""What FLARE 2.9 has a party do."""
REFUSED_COMMANDS = {
    "add_study_site", "add_study_user", "admin_check_status", "app_command", "cat", "check_status", "clone_job",
    "configure_job_log", "configure_site_log", "dead", "delete_job", "delete_workspace", "disable_client",
    "download_job", "download_job_components", "enable_client", "get_job_log", "get_job_meta", "grep", "head",
    "list_job", "list_jobs", "list_studies", "ls", "pwd", "register_study", "remove_client", "remove_study",
    "remove_study_site", "remove_study_user", "report_env", "report_resources", "report_version", "reset_errors",
    "restart", "show_errors", "show_scopes", "show_stats", "show_study", "shutdown", "sys_info", "tail",
}  # fmt: skip
"""What FLARE 2.9 has a server do for an administrator, and ours does not."""


@pytest.fixture
def guarded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Guard FLARE's classes for one test; the list gets every request that reaches FLARE."""
    passed: list[str] = []

    def process(cell: Any, origin: str, message: CellMessage) -> CellMessage:
        passed.append(origin)
        return CellMessage()

    monkeypatch.setattr(CoreCell, "_process_request", process)
    monkeypatch.setattr(FedAdminAgent, "_dispatch_request", FedAdminAgent._dispatch_request)
    guard_requests()
    return passed


class App:
    @contextmanager
    def new_context(self) -> Iterator[FLContext]:
        yield FLContext()


@pytest.fixture
def agent(guarded: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FedAdminAgent:
    """FLARE's own object that does what a server asks of a party, with all that it can do."""
    monkeypatch.setattr(AuditService, "the_auditor", Auditor(str(tmp_path / "audit.txt")))
    engine = ClientEngine.__new__(ClientEngine)
    engine.args = SimpleNamespace(workspace=str(tmp_path / "kit"))
    engine.new_context = App().new_context
    cell = SimpleNamespace(register_request_cb=lambda **_: None)
    agent = FedAdminAgent(client_name="north", app_ctx=engine, cell=cell)
    for each in ClientRequestProcessors.request_processors:
        agent.register_processor(each)
    return agent


def ask(agent: FedAdminAgent, topic: str, body: Any = "", **headers: Any) -> str:
    message = Message(topic, body)
    message.set_headers(headers)
    return str(agent._dispatch_request(CellMessage(payload=message)).payload.body)


def test_flare_asks_nothing_that_nobody_has_looked_at() -> None:
    """If this fails after an update of FLARE: decide about what is new before you add it here."""
    topics = [topic for each in ClientRequestProcessors.request_processors for topic in each.get_topics()]
    assert set(topics) == KNOWN_TOPICS
    known = {each.name for module in ServerCommandModules.cmd_modules for each in module.get_spec().cmd_specs}
    assert known - COMMANDS == REFUSED_COMMANDS
    assert {each.get_command_name() for each in AdminCommands.commands} == {
        "abort", "abort_task", "check_status", "configure_job_log", "reset_errors", "show_errors", "show_stats",
        "shutdown",
    }  # fmt: skip


def test_a_server_reads_no_file_of_a_party_and_deletes_none(agent: FedAdminAgent, tmp_path: Path) -> None:
    kit = tmp_path / "kit"
    (kit / "state").mkdir(parents=True)
    (kit / "seal.key").write_text("secret")
    assert ask(agent, "sys.shell", f"cat {kit}/seal.key") == "refused: a party does not do this"
    assert ask(agent, "train.delete_run", job_id="state") == "refused: a party does not do this"
    for job in ("state", "..", "", "startup", JOB.upper(), f"{JOB}/../state", None, 7):
        assert ask(agent, "train.deploy", b"", job_id=job, job_meta={"x": 1}) == "refused: its job has no valid id"
    assert ask(agent, "train.start_job", job_id=JOB, job_meta={"job_id": f"{JOB}/app"}).endswith("has no valid id")
    assert (kit / "state").exists()


@pytest.mark.parametrize("topic", sorted(KNOWN_TOPICS))
def test_a_party_does_for_its_server_what_a_run_needs(topic: str, agent: FedAdminAgent) -> None:
    assert (ask(agent, topic, job_id=JOB) == "refused: a party does not do this") == (topic not in JOB_TOPICS)


def job_of(*names: str, data: bytes = b"{}") -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as files:
        for name in names:
            files.writestr(name, data)
    return packed.getvalue()


CLIENT = "config/config_fed_client.json"


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (job_of(CLIENT, "config/config_fed_server.json", "config/.__nvfl_sig.json", ".__nvfl_submitter.crt"), ""),
        (job_of(CLIENT, "config/evil.py"), "its job brings a file"),
        (job_of(CLIENT, "custom/evil.py"), "its job brings a file"),
        (job_of("../config/config_fed_client.json"), "its job brings a file"),
        (job_of(CLIENT, data=bytes(1 << 25)), "its job is too large"),
        (b"PK", "its job has no readable files"),
        (None, "its job has no readable files"),
    ],
)
def test_a_job_brings_no_code(body: Any, why: str) -> None:
    assert objection("train.deploy", {"job_id": JOB, "job_meta": {"job_id": JOB}}, body) == why


@pytest.mark.parametrize(
    ("process", "sender", "channel", "topic"),
    [
        ("north", "server", "admin", "admin"),
        (f"north.{JOB}", f"server.{JOB}", "collab", "call"),
        (f"north.{JOB}", "north", "client_command", "abort"),
        ("server", "south", "task", "heart_beat"),
        ("server", "_admin_1", "hci_channel", "command"),
    ],
)
def test_only_the_processes_of_a_run_ask_each_other(process: str, sender: str, channel: str, topic: str) -> None:
    assert is_answered(process, sender, channel, topic)
    assert not is_answered(process, sender, channel, "other")
    others = {"south", "server", f"server.{JOB}", f"server.{OTHER}", f"south.{JOB}", "_admin_1", "relay.north", ""}
    for other in others - {sender}:
        assert not is_answered(process, other, channel, topic) or (process, other, channel) == (
            "server",
            "north",
            "task",
        )


@pytest.mark.parametrize("channel", ["_net_manager", "credential_manager", "cellnet.channel", "admin"])
@pytest.mark.parametrize("sender", ["server", "south", "_admin_1", f"server.{JOB}"])
def test_requests_that_are_not_listed_do_not_reach_flare(channel: str, sender: str, guarded: list[str]) -> None:
    north: Any = SimpleNamespace(my_info=SimpleNamespace(fqcn="north"))
    for topic in ("stop", "bulk", "config_vars", "key_exchange", "sys.shell"):
        plain = {MessageHeaderKey.CHANNEL: channel, MessageHeaderKey.TOPIC: topic}
        long = {MessageHeaderKey.CHANNEL: "sm__STREAM", MessageHeaderKey.TOPIC: "sm__DATA"}
        long |= {StreamHeaderKey.CHANNEL: channel, StreamHeaderKey.TOPIC: topic}
        for headers in (plain, long):
            reply = CoreCell._process_request(north, sender, CellMessage(headers))
            assert reply.get_header(MessageHeaderKey.RETURN_CODE) == ReturnCode.AUTHENTICATION_ERROR
    assert not guarded


def test_a_listed_request_reaches_flare(guarded: list[str]) -> None:
    north: Any = SimpleNamespace(my_info=SimpleNamespace(fqcn="north"))
    headers = {MessageHeaderKey.CHANNEL: "admin", MessageHeaderKey.TOPIC: "admin"}
    CoreCell._process_request(north, "server", CellMessage(headers))
    assert guarded == ["server"]


def test_an_administrator_has_the_commands_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ServerCommandRegister, "register_module_spec", ServerCommandRegister.register_module_spec)
    guard_commands()
    registry = ServerCommandRegister(None)
    own: Any = commands.Commands(SimpleNamespace(), SimpleNamespace())  # type: ignore[arg-type]
    for module in (*ServerCommandModules.cmd_modules, own):
        registry.register_module(module)
    registry.finalize()
    for name in REFUSED_COMMANDS:
        connection = Connection()
        registry.process_command(connection, name)
        assert f'Unknown command \\"{name}\\"' in connection.close()
    ours = {commands.LOOK, commands.FETCH, commands.CLEAR, commands.REVOKE, commands.ROSTER}
    assert {name for name in registry.cmd_map if "." not in name} == {"abort_job", "submit_job", *ours}
