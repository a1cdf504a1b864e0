"""Data of your own: read it, be told what was found in it, keep it in a form that opens at once."""
