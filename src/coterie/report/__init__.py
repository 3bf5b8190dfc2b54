"""Reads run folders: tables, charts, pages."""
