"""The administrator's commands at a federation's server: what goes on, results, and which kits to refuse."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from uuid import uuid4

from nvflare.apis.job_def import RunStatus
from nvflare.fuel.hci.conn import Connection
from nvflare.fuel.hci.proto import MetaStatusValue, make_meta
from nvflare.fuel.hci.reg import CommandModule, CommandModuleSpec, CommandSpec
from nvflare.fuel.hci.server.binary_transfer import BinaryTransfer
from nvflare.fuel.hci.server.constants import ConnProps
from nvflare.private.fed.server.cmd_utils import CommandUtil
from nvflare.private.fed.server.server_cmd_modules import ServerCommandModules

from isthmus.deploy.door import Door
from isthmus.deploy.kits import ADMIN
from isthmus.deploy.records import OUTCOME, Records
from isthmus.errors import IsthmusError

LOOK, FETCH, CLEAR, REVOKE, ROSTER = (f"isthmus_{each}" for each in ("look", "fetch", "clear", "revoke", "roster"))
SHOWN = 50
"""Studies that `look` tells of, the newest ones."""


class Commands(CommandModule, CommandUtil, BinaryTransfer):
    """What an administrator may ask of the server, beside FLARE's own commands.

    Arguments:
        door: knows who is connected.
        records: of all studies.
    """

    def __init__(self, door: Door, records: Records) -> None:
        BinaryTransfer.__init__(self)
        self.door, self.records = door, records

    def get_spec(self) -> CommandModuleSpec:
        handlers = {LOOK: self.look, FETCH: self.fetch, CLEAR: self.clear, REVOKE: self.revoke, ROSTER: self.roster}
        return CommandModuleSpec(
            name="isthmus",
            cmd_specs=[
                CommandSpec(
                    name=name,
                    description=str(handler.__doc__),
                    usage=name,
                    handler_func=handler,
                    authz_func=self.must_be_project_admin,
                )
                for name, handler in handlers.items()
            ],
        )

    def look(self, conn: Connection, args: Sequence[str]) -> None:
        """Say who is connected, and how far the studies are."""
        engine = conn.app_ctx
        with engine.new_context() as context:
            waiting = engine.job_def_manager.get_jobs_by_status([RunStatus.SUBMITTED, RunStatus.DISPATCHED], context)
        known = engine.server.client_manager.name_to_clients  # FLARE lists a party for minutes after it has left
        connected = self.door.connected()
        here = {name for name, since in connected.items() if name in known and known[name].last_connect_time >= since}
        found = {
            "parties": {name: name in here for name in self.door.kit.parties},
            "refused": {name: dict(told) for name, told in self.door.refused.items() if name != ADMIN},
            "jobs": [*engine.run_processes, *(job.job_id for job in waiting)],
            "studies": [asdict(record) for record in self.records.all()[:SHOWN]],
            "roster": self.door.roster.number,
        }
        conn.append_dict(found, meta=make_meta(MetaStatusValue.OK))

    def fetch(self, conn: Connection, args: Sequence[str]) -> None:
        """Hand over the outcome of a study."""
        name, transfer = str(args[1]), str(uuid4())
        try:
            source = self.records.place(name) / OUTCOME  # checks the name
            place = Path(self.tx_path(conn, transfer, name))
            place.mkdir(parents=True)
            shutil.copy(source, place)
        except (OSError, IsthmusError) as error:
            conn.append_error(f"no outcome of study {name}: {error}", meta=make_meta(MetaStatusValue.ERROR, str(error)))
            return
        conn.set_prop(ConnProps.ENGINE, conn.app_ctx)
        self.download_folder(conn, tx_id=transfer, folder_name=name)

    def clear(self, conn: Connection, args: Sequence[str]) -> None:
        """Delete what is kept of a study whose outcome was fetched."""
        self.records.clear(str(args[1]))
        conn.append_dict({"done": True}, meta=make_meta(MetaStatusValue.OK))

    def revoke(self, conn: Connection, args: Sequence[str]) -> None:
        """Refuse a party's present kit from now on."""
        conn.append_dict({"done": self.door.revoke(str(args[1]))}, meta=make_meta(MetaStatusValue.OK))

    def roster(self, conn: Connection, args: Sequence[str]) -> None:
        """Take a newer roster of the authority's."""
        text: Any = conn.get_prop(ConnProps.CMD_PROPS)
        try:
            done, why = self.door.adopt(str(text["text"])), ""
        except (IsthmusError, KeyError, TypeError) as error:
            done, why = False, str(error)
        conn.append_dict({"done": done, "why": why}, meta=make_meta(MetaStatusValue.OK))


def offer(door: Door, records: Records) -> None:
    """Add the commands to those of FLARE's server."""
    ServerCommandModules.register_cmd_module(Commands(door, records))
