"""Errors, defaults and the name registry; nothing here imports torch."""
