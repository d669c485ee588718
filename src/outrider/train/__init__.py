"""Training of drafters for a target: `outrider train`."""
