"""The report: one self-contained HTML file from the records of one or many runs."""
