"""EAGLE-3 heads: see heads/eagle3.py."""

from outrider.drafters.feature_drafter import RecurrentDrafter
from outrider.heads.read_eagle3 import read_eagle3


class Eagle3Drafter(RecurrentDrafter):
    name = kind = "eagle3"
    read = staticmethod(read_eagle3)
