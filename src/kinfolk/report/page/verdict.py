"""The verdict, where the page looks for it."""

from kinfolk.report.verdict import Sentence, Verdict, verdict

__all__ = ["Sentence", "Verdict", "verdict"]
