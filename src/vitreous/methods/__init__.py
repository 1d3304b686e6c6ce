"""All attribution methods: either a per-layer signal combined by a fold, or one function of the whole model."""
