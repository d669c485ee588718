"""EAGLE-1 and 2 heads: see heads/eagle.py. EAGLE-2 is EAGLE-1 with tree="confidence"."""

from typing import Any

from outrider.drafters.feature_drafter import RecurrentDrafter
from outrider.heads.read_eagle import read_eagle
from outrider.heads.untrained import untrained


class EagleDrafter(RecurrentDrafter):
    name = kind = "eagle"
    read = staticmethod(read_eagle)

    @classmethod
    def audit_config(cls, target: str) -> dict[str, Any]:
        return {"method": cls.name, "model": untrained(cls.kind, target)}
