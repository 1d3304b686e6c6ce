"""The command line: `main` dispatches to the verbs; every other module implements a verb or is shared by verbs."""
