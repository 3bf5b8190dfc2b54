"""Who takes part in a run of real clients: `register.json` in its folder, written once when the run begins."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter

from coterie.clients.data.agree.agreement import Agreement
from coterie.clients.data.agree.population import ClientInfo
from coterie.errors import BadInput
from coterie.runs.folder.files import encode_json, read_json, write_whole
from coterie.runs.loop import REGISTER


@dataclass(frozen=True)
class Registration:
    """The clients of a run, and the key under which they keep their states for it.

    They are in the order in which they registered. In the run, those that are held out of training come last.
    """

    key: str
    clients: tuple[ClientInfo, ...]
    agreement: Agreement | None = None
    """What they do alike; None where their data need none."""

    @classmethod
    def read(cls, folder: Path) -> Registration:
        """Read `register.json` of a run.

        Raises:
            BadInput: the run is a simulation, or the file is damaged.
        """
        content = read_json(folder / REGISTER)
        if content is None:
            raise BadInput(
                f"{str(folder)!r} has no {REGISTER}: it is a simulation, or its clients never registered; go on "
                "with a simulation by: coterie resume"
            )
        try:
            clients = TypeAdapter(tuple[ClientInfo, ...]).validate_python(content["clients"])
            agreed = content.get("agreed")
            agreement = None if agreed is None else Agreement.from_json(agreed)
            return cls(str(content["key"]), clients, agreement)
        except (KeyError, TypeError, ValueError):  # a BadInput is a ValueError, and pydantic's too
            raise BadInput(f"{folder / REGISTER} is damaged; restore it, or start a new run") from None

    def write(self, folder: Path) -> None:
        """Write `register.json`."""
        clients = [
            {key: value for key, value in asdict(c).items() if key not in ("columns", "sums")} for c in self.clients
        ]
        agreed = {} if self.agreement is None else {"agreed": self.agreement.to_json()}
        content = {"key": self.key, "clients": clients, **agreed}
        write_whole(folder / REGISTER, encode_json(content))
