"""The charts of the report, one family a file; a chart is None where there is nothing to show."""
