"""A whole federation in this process: nodes that are asked through the very messages that Flower carries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from uuid import uuid4

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

Settings = Mapping[str, str | int | float | bool]
RAISED = 2
"""Flower's number for an app that raised an exception."""


class InProcessGrid(Grid):
    """Carries messages to a client app in this process, for rehearsals and tests.

    Args:
        app: what every node runs.
        nodes: the node configuration of each; nodes are 1000, 1001, ….
        config: the run configuration.
    """

    def __init__(self, app: ClientApp, nodes: Sequence[Settings], config: Settings) -> None:
        # Flower makes no message without these, which its processes are started with.
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
        self.app = app
        self.offline: set[int] = set()
        """Nodes that are away."""
        self.mute: set[int] = set()
        """Nodes that are there and never answer."""
        self.registered: dict[int, str] = {}
        """The names that nodes' keys were registered with; a node that is not in it has none."""
        self._contexts = {1000 + i: _context(1000 + i, own, config) for i, own in enumerate(nodes)}
        self._replies: dict[str, Message] = {}
        self._run: Run | None = None

    def set_run(self, run: Run) -> None:
        self._run = run

    @property
    def run(self) -> Run:
        assert self._run is not None
        return self._run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return Message(content, dst_node_id=dst_node_id, message_type=message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        return [node for node in self._contexts if node not in self.offline]

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [NodeInfo(node_id=node, name=self.registered.get(node)) for node in self.get_node_ids()]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        keys = []
        for message in messages:
            key = str(uuid4())
            message.metadata.__dict__["_message_id"] = key
            keys.append(key)
            if message.metadata.dst_node_id not in self.mute:
                self._replies[key] = self._answered(message)
        return keys

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._replies.pop(key) for key in message_ids if key in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))

    def _answered(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        if node in self.offline:
            return Message(Error(code=5, reason="Node Unavailable"), reply_to=message)
        try:
            return self.app(message, self._contexts[node])
        except Exception as error:  # noqa: BLE001  # as Flower's own processes do
            return Message(Error(code=RAISED, reason=f"{type(error)}:<'{error}'>"), reply_to=message)


def rehearsed(server: ServerApp, grid: Grid, config: Settings) -> None:
    """Run a server app against a grid in this process."""
    server(grid=grid, context=_context(1, {}, config))


def _context(node: int, own: Settings, config: Settings) -> Context:
    return Context(run_id=1, node_id=node, node_config=dict(own), state=RecordDict(), run_config=dict(config))
