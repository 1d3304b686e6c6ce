"""The command line: `main` holds the verbs together, every other file is one verb or what verbs share."""
