"""EAGLE-1 and 2 heads: see heads/eagle.py. EAGLE-2 is EAGLE-1 with tree="confidence"."""

from outrider.drafters.feature_drafter import RecurrentDrafter
from outrider.heads.read_eagle import read_eagle


class EagleDrafter(RecurrentDrafter):
    name = kind = "eagle"
    read = staticmethod(read_eagle)
