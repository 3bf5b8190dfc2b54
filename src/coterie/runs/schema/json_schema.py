"""The JSON Schema of an experiment's TOML file, by which editors complete keys and mark mistakes."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, create_model
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind

from coterie.runs.schema.names import CHOICES, catalog
from coterie.runs.schema.registry import SECTIONS


class _Plain(GenerateJsonSchema):
    """A default that is no JSON, as a class in a network of one's own, is left out without a word."""

    def emit_warning(self, kind: JsonSchemaWarningKind, detail: str) -> None: ...


def experiment_schema() -> dict[str, Any]:
    """Return it, with the settings of every method, network and task that is listed.

    What a path names, as in `my_models:net`, may have any settings.
    """
    sections: dict[str, Any] = {title: (section, None) for title, section in SECTIONS.items()}
    model: type[BaseModel] = create_model("Experiment", **sections)
    found = model.model_json_schema(schema_generator=_Plain)
    found |= {"$schema": "http://json-schema.org/draft-07/schema#", "additionalProperties": False}
    found["properties"]["data"] = {"anyOf": [{"type": "string"}, found["properties"]["data"]]}  # a name alone
    for title in CHOICES:
        entries = {entry.name: entry.schema.model_json_schema(schema_generator=_Plain) for entry in catalog(title)}
        common = found["$defs"][SECTIONS[title].__name__]["properties"]
        found["properties"][title] = _choice(entries, common, title != "method")
        found["$defs"] |= {key: value for own in entries.values() for key, value in own.get("$defs", {}).items()}
    return found


def _choice(entries: dict[str, Any], common: dict[str, Any], has_auto: bool) -> dict[str, Any]:
    """Return a section whose name decides which settings there are, beside those that it always has."""
    listed = {"enum": [*["auto"] * has_auto, *entries]}
    name = {**common["name"], "anyOf": [listed, {"pattern": ":"}]}
    cases = [
        {
            "if": {"properties": {"name": {"const": one}}, "required": ["name"]},
            "then": {"properties": {**common, **own.get("properties", {})}, "additionalProperties": False},
        }
        for one, own in entries.items()
    ]
    return {"anyOf": [name, {"type": "object", "properties": {**common, "name": name}, "allOf": cases}]}
