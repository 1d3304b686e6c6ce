"""Names and refusals; nothing here imports torch."""
