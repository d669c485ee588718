"""Trained drafters in the formats that other programs read: `outrider export`."""
