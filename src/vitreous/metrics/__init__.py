"""One number per picture, NaN when undefined."""
