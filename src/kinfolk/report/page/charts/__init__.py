"""The charts of the report, one family a file; each is made from runs; None where there is nothing to show."""
