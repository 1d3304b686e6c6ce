"""Study of the methods on small models: plans, results, and the scripts that fill its pages in docs/study."""
