"""Maps of whole datasets: read, decode, explain and write, in one process or on Ray Data.

`vitreous.mapping.run.run_map` is what `vitreous map` calls; `vitreous.maps` reads the results.
"""
