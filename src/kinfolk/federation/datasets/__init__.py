"""Data sets by name: loaders of the published files, a catalogue of them, and how to fetch them."""
