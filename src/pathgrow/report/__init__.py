"""Reports of runs: the schema, and what shows them on a terminal, as a figure, as a page and in comparisons."""
