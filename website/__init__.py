"""The documentation site: what mkdocs calls as it builds `docs/`, the list of what is public, and its pictures."""
