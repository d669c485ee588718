"""EAGLE-3 heads: see heads/eagle3.py."""

from typing import Any

from outrider.drafters.feature_drafter import RecurrentDrafter
from outrider.heads.read_eagle3 import read_eagle3
from outrider.heads.untrained import untrained


class Eagle3Drafter(RecurrentDrafter):
    name = kind = "eagle3"
    read = staticmethod(read_eagle3)

    @classmethod
    def audit_config(cls, target: str) -> dict[str, Any]:
        return {"method": cls.name, "model": untrained(cls.kind, target)}
