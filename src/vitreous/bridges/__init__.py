"""Bridges to other tools: captum, Quantus, shapiq, FiftyOne, Hugging Face datasets, and training loggers.

Each module imports the other package when its function is called; none of them is a dependency.
"""
