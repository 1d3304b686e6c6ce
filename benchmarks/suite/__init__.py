"""Ratios measured in one run: each method beside the work that its mathematics needs, and beside its peers."""
