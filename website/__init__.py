"""The documentation site: what mkdocs calls as it builds `docs/`, what is public, its pictures and tables."""
