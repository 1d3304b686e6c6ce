"""Metrics of attributions: one score per row, NaN where undefined, with the settings that produced it."""
