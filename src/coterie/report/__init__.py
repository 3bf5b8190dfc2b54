"""Run folders in; tables, charts and pages out.

run_page, run_tables    one run: its page, and its rounds for a terminal; against: what it is compared with
comparison/             runs of several methods over seeds: coterie.compare, its page, tables and findings
reproduction/           tables of papers, run again: one result, and the document on all
figures                 coterie.draw: the figures of any of these, for a notebook
charts/                 the charts of a run's page: a new one is a function in one file there
drawing/                what charts are drawn with: figure, marks, colours, files
tables, rendering       one table for HTML, Markdown, LaTeX and a terminal; Jinja2 templates in templates/
numbers                 numbers and lists in words
"""
