"""Which requests a process of a federation answers: those that a run needs, and no others.

FLARE's processes read files, delete folders, run commands and shut down for whoever can send them a message. Whether
they check the sender's rights is a header of the message, so a sender can leave it out. Ours compare every request with
the lists below first. What FLARE adds is refused until it is listed here.
"""

from __future__ import annotations

import io
import logging
import zipfile
from collections.abc import Mapping, Set
from typing import Any
from uuid import UUID

log = logging.getLogger(__name__)

STREAM, DATA = "sm__STREAM", "sm__DATA"
"""FLARE's channel for long messages, and its topic for their content; each names the channel and topic it is for."""
DOWNLOADS = {"download_service__": {"download_service__download", "download_service__source_failure"}}
"""Long values are fetched by a random name that their owner gave away."""
ALWAYS: Mapping[str, Set[str]] = {
    "cellnet.channel": {"bye"},
    "return_only": {"*"},  # replies
    STREAM: {"sm__ACK", "sm__ERROR"},
}
"""By channel the topics that everybody answers to everybody below."""
ANSWERED: Mapping[tuple[str, str], Mapping[str, Set[str]]] = {
    ("party", "server"): {"admin": {"admin"}},  # `JOB_TOPICS`
    ("party", "party job"): {"admin": {"train.notify_job_status"}},
    ("party job", "party"): {"client_command": {"abort"}},
    ("party job", "server job"): {
        "aux_communication": {"__end_run__", "__abort_task__"},
        "collab": {"call"},
        **DOWNLOADS,
    },
    ("server", "party"): {"task": {"challenge", "register", "quit", "heart_beat", "report_job_failure"}},
    ("server", "admin"): {
        "task": {"challenge", "register", "quit"},
        "hci_channel": {"command"},  # `COMMANDS`
        "aux_communication": {"ObjectStreamer.Request", "ObjectStreamer.Abort"},
        **DOWNLOADS,
    },
    ("server", "server job"): {"server_parent_listener": {"get_clients", "heartbeat", "update_run_status"}},
    ("server", "party job"): {},
    ("server job", "server"): {"server_command": {"abort", "handle_dead_job"}},
    ("server job", "party"): {},
    ("server job", "party job"): {
        "aux_communication": {"__sync_runner__", "__task_check__", "__job_heartbeat__"},
        "server_command": {"get_task", "submit_update"},
        **DOWNLOADS,
    },
    ("admin", "server"): {},
}
"""By the kinds of the process that is asked and the one that asks: the topics that are answered, by channel."""
JOB_TOPICS = {
    "scheduler.cancel_resource",
    "scheduler.check_resource",
    "train.abort",
    "train.deploy",
    "train.notify_job_status",
    "train.start_job",
}
"""What a server may have a party do: check, deploy, start and stop a job."""
COMMANDS = {"_cert_login", "_check_session", "_commands", "_logout", "abort_job", "submit_job"}
"""What an administrator may have the server do, beside the commands of `deploy.commands`."""
JOB_FILES = {"config/config_fed_client.json", "config/config_fed_server.json"}
"""The files of a job, beside signatures; see `admin.write_job`."""
JOB_BYTES = 1 << 24
"""The most bytes that the files of a job may have."""
_SIGNED = (".__nvfl_sig.json", ".__nvfl_submitter.crt")
"""What FLARE adds to each folder that an administrator submits."""


def kind_of(process: str) -> str:
    """Return what a process is, by its address; empty if there is no such process in a federation.

    >>> [kind_of(each) for each in ("server", "north", "north.JOB", "_admin_1", "north.JOB.more")]
    ['server', 'party', 'party job', 'admin', '']
    """
    root, *jobs = process.split(".")
    if len(jobs) > 1 or not root:
        return ""
    role = "server" if root == "server" else "admin" if root.startswith("_admin_") else "party"
    return f"{role} job" if jobs else role


def is_answered(process: str, sender: str, channel: str, topic: str) -> bool:
    """Return whether a process answers a sender's request."""
    asked, asking = kind_of(process), kind_of(sender)
    (root, _, job), (other, _, their_job) = process.partition("."), sender.partition(".")
    others = asked.startswith("party") and asking.startswith("party") and root != other
    known = ANSWERED.get((asked, asking))
    if known is None or others or (job and their_job and job != their_job):
        return False
    return any({topic, "*"} & set(each.get(channel, ())) for each in (ALWAYS, known))


def objection(topic: str, header: Mapping[str, Any], body: Any) -> str:
    """Return why a party does not do what its server asks of it.

    Arguments:
        header, body: of the request.
    """
    if topic not in JOB_TOPICS:
        return "a party does not do this"
    job, described = header.get("job_id"), header.get("job_meta")
    named = described.get("job_id", job) if isinstance(described, Mapping) else job
    if not _is_job(job) or named != job:
        return "its job has no valid id"
    return _contents_problem(body) if topic == "train.deploy" else ""


def _is_job(name: Any) -> bool:
    """Return whether this is the name of a job, as FLARE makes it: no other folder of a kit has such a name."""
    try:
        return str(UUID(name)) == name
    except (ValueError, TypeError, AttributeError):
        return False


def _contents_problem(body: Any) -> str:
    """Return what is wrong with the files of a job; none of them may be code."""
    try:
        with zipfile.ZipFile(io.BytesIO(body)) as files:
            found = [each for each in files.infolist() if not each.is_dir()]
    except (zipfile.BadZipFile, TypeError, ValueError, NotImplementedError):
        return "its job has no readable files"
    for each in found:
        if each.filename not in JOB_FILES and each.filename.rpartition("/")[2] not in _SIGNED:
            return "its job brings a file"
    return "its job is too large" if sum(each.file_size for each in found) > JOB_BYTES else ""


def guard_requests() -> None:
    """Have FLARE answer what is listed here in this process, and nothing else."""
    from nvflare.fuel.f3.cellnet.core_cell import CoreCell
    from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
    from nvflare.fuel.f3.cellnet.utils import make_reply
    from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey
    from nvflare.private.admin_defs import error_reply
    from nvflare.private.defs import new_cell_message
    from nvflare.private.fed.client.admin import FedAdminAgent

    if getattr(CoreCell._process_request, "guarded", False):
        return
    process, dispatch = CoreCell._process_request, FedAdminAgent._dispatch_request

    def process_listed(cell: Any, origin: str, message: Any) -> Any:
        where = MessageHeaderKey.CHANNEL, MessageHeaderKey.TOPIC
        channel, topic = (str(message.get_header(key, "")) for key in where)
        if (channel, topic) == (STREAM, DATA):
            where = StreamHeaderKey.CHANNEL, StreamHeaderKey.TOPIC
            channel, topic = (str(message.get_header(key, "")) for key in where)
        if is_answered(cell.my_info.fqcn, str(origin), channel, topic):
            return process(cell, origin, message)
        log.warning("refused a request of %a: %a, %a", str(origin)[:80], channel[:80], topic[:80])
        return make_reply(ReturnCode.AUTHENTICATION_ERROR, error="refused")

    def dispatch_listed(agent: Any, request: Any) -> Any:
        asked = request.payload
        if why := objection(asked.topic, asked.headers, asked.body):
            log.warning("refused what the server asks, %a: %s", str(asked.topic)[:80], why)
            return new_cell_message({}, error_reply(f"refused: {why}"))
        return dispatch(agent, request)

    process_listed.guarded = True  # type: ignore[attr-defined] # a mark, so that nothing is wrapped twice
    CoreCell._process_request, FedAdminAgent._dispatch_request = process_listed, dispatch_listed


def guard_commands() -> None:
    """Have the server of a federation know the administrator's commands that are listed here, and no others."""
    from nvflare.fuel.hci.server.reg import ServerCommandRegister

    register = ServerCommandRegister.register_module_spec

    def register_listed(registry: Any, spec: Any, *more: Any, **options: Any) -> None:
        if spec.name != "isthmus":
            spec.cmd_specs = [each for each in spec.cmd_specs if each.name in COMMANDS]
        register(registry, spec, *more, **options)

    ServerCommandRegister.register_module_spec = register_listed
