"""A Flower app that asks each node what it was told, and prints the answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from coterie.shipping.flower.deployment import Deployment

SERVER = """
import json, time
from flwr.app import Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()

@app.main()
def main(grid, context):
    while len(nodes := sorted(grid.get_node_ids())) < context.run_config["nodes"]:
        time.sleep(0.2)
    waiting = set(grid.push_messages([Message(RecordDict(), node, "query") for node in nodes]))
    while waiting:
        for reply in grid.pull_messages(list(waiting)):
            waiting.discard(reply.metadata.reply_to_message_id)
            told = json.loads(reply.content["answer"]["config"]) if reply.has_content() else str(reply.error)
            print(json.dumps({"node": str(reply.metadata.src_node_id), "told": told}), flush=True)
        time.sleep(0.1)
    print(json.dumps({"config": dict(context.run_config)}), flush=True)
    time.sleep(context.run_config["linger"])
"""
CLIENT = """
import json, time
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

@app.query()
def query(message, context):
    time.sleep(context.run_config["work"])
    answer = ConfigRecord({"config": json.dumps(dict(context.node_config))})
    return Message(RecordDict({"answer": answer}), reply_to=message)
"""
PROJECT = """
[project]
name = "asking"
version = "1.0.0"
description = "Asks each node what it was told"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "coterie"
components = { serverapp = "asking.server:app", clientapp = "asking.client:app" }
config = { nodes = 1, work = 0.0, linger = 0.0, text = "" }
"""


def write_asking_app(folder: Path) -> Path:
    """Write the app into a folder, and return the folder."""
    (folder / "asking").mkdir(parents=True)
    for file, text in {
        "pyproject.toml": PROJECT,
        "asking/__init__.py": "",
        "asking/server.py": SERVER,
        "asking/client.py": CLIENT,
    }.items():
        (folder / file).write_text(text, "utf-8")
    return folder


def printed(deployment: Deployment, run: str) -> list[dict[str, Any]]:
    """The lines of JSON that an app has printed."""
    return [json.loads(line) for line in deployment.output(run).splitlines() if line.startswith("{")]
