"""Framework -> `MSCGraph`; one module per framework."""
