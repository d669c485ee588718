"""Proofs that a user can run: speculation leaves the text and its distribution as they are."""
