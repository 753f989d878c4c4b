"""The choice of what may run next: turn by turn, in bounded work, the same for every store.

A store shows its ready jobs as a `Line`; a `Chooser` goes through it. Nothing here reads or
writes a store by itself, and nothing depends on which store it is.
"""

from headgate.choice.chooser import Chooser
from headgate.choice.line import LaneKey, Line, Lines, Row, Taken

__all__ = ["Chooser", "LaneKey", "Line", "Lines", "Row", "Taken"]
