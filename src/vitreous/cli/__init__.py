"""The command line: `main` dispatches to the verbs; every other module is a verb, or shared by verbs."""
