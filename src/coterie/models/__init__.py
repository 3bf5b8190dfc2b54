"""Networks of the papers, and the layout of their flat parameter vectors."""
